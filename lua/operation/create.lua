-- operation/create: stores a bulk operation as running, unless it is there already.
-- @key operation            the operation's hash
-- @arg ttl_ms: u64          how long it is kept
-- @arg fields: list<bytes>  name, value, and so on
-- @ret created: u64         1, or 0 if it was there
-- @ret fields: list<bytes>  what stands: name, value, and so on
local created = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000000 + t[2])
  redis.call('HSET', KEYS[1], 'status', 'running', 'created_at', now, unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  created = 1
end
return { created, redis.call('HGETALL', KEYS[1]) }
