-- operation/cancel: ends a running operation. It does not undo what the operation has done.
-- @key operation            the operation's hash
-- @ret outcome: u64         0 = missing, 1 = cancelled, by this call or before, 2 = ended in another way
-- @ret fields: list<bytes>  the operation as stored: name, value; repeated for each field
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return { 0, {} } end
if status == 'running' then
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000000 + t[2])
  redis.call('HSET', KEYS[1], 'status', 'cancelled', 'finished_at', now)
  status = 'cancelled'
end
return { status == 'cancelled' and 1 or 2, redis.call('HGETALL', KEYS[1]) }
