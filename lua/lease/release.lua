-- lease/release: frees a lock that is still this holder's.
-- @key lock                 the lock
-- @arg value: bytes         `owner:fence` as granted
-- @ret freed: u64           1 or 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
