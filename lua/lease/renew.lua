-- lease/renew: extends a lock if this holder still has it.
-- @key lock                 the lock
-- @arg value: bytes         `owner:fence` as granted
-- @arg ttl_ms: u64          new time to live, from now
-- @ret held: u64            1 if still held, otherwise 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
