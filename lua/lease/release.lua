-- lease/release: frees a lock if this owner holds it, under any fence.
-- @key lock                 the lock
-- @arg owner: bytes         name of the owner; unique per holder
-- @ret freed: u64           1 if freed, otherwise 0
local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^(.*):%d+$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
