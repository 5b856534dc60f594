-- listing/drop: removes a list whose jobs are all deleted, unless a job was added since the caller read it.
-- @key listing              a tenant's jobs of ten minutes
-- @arg length: u64          number of entries as the caller read it
-- @ret dropped: u64         1 if the list is removed, by this call or before; otherwise 0
local length = redis.call('LLEN', KEYS[1])
if length ~= 0 and length ~= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1])
return 1
