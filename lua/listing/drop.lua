-- listing/drop: removes a list of which everybody is gone, unless somebody was added since it was read.
-- @key listing              a tenant's jobs of ten minutes
-- @arg length: u64          as read
-- @ret dropped: u64         1 or 0
if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1])
return 1
