-- operation/create: stores a bulk operation as running, unless it exists.
-- @key operation            the operation's hash
-- @arg ttl_ms: u64          how long the operation is kept
-- @arg fields: list<bytes>  name, value; repeated for each field
-- @ret created: u64         1 if created, 0 if it existed
-- @ret fields: list<bytes>  the operation as stored: name, value; repeated for each field
local created = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000000 + t[2])
  redis.call('HSET', KEYS[1], 'status', 'running', 'created_at', now, unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  created = 1
end
return { created, redis.call('HGETALL', KEYS[1]) }
