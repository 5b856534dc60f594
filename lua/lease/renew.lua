-- lease/renew: prolongs a lock that is still this holder's.
-- @key lock                 the lock
-- @arg value: bytes         `owner:fence` as granted
-- @arg ttl_ms: u64          from now
-- @ret held: u64            1 or 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
