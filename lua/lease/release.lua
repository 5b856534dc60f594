-- lease/release: frees a lock that is still this owner's, under whichever fence.
-- @key lock                 the lock
-- @arg owner: bytes         who asked for it; unique per holder
-- @ret freed: u64           1 or 0
local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^(.*):%d+$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
