-- listing/drop: removes a list of which everybody is gone, unless somebody was added since it was read.
-- @key listing              a tenant's jobs of ten minutes
-- @arg length: u64          as read
-- @ret dropped: u64         1 if it is gone, now or before; otherwise 0
local length = redis.call('LLEN', KEYS[1])
if length ~= 0 and length ~= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1])
return 1
