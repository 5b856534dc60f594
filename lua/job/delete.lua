-- job/delete: removes the record of an ended job. A stub without payload and result stays while the job's idempotency
-- key is taken, and while the loop `reread` may read its submit again: without the stub, that would create the job
-- again.
-- @key job                  the job's hash
-- @arg keep_key: u64        microseconds after the submit for which its idempotency key stays taken
-- @arg keep_stub: u64       microseconds after its end for which a stub stays, with or without a key
-- @arg kept: u64            microseconds after its end before which the record must not be deleted; 0 = no limit
-- @ret outcome: u64         1 = deleted, 2 = not ended, 3 = missing, 4 = ended too recently
-- @include job/table
-- @include job/head
-- @include job/raw
if whole then return 2 end
if not raw or redis.call('HEXISTS', KEYS[1], 'x') == 1 then return 3 end
if string.byte(raw, 1) < SUCCEEDED then return 2 end
local ended, kept = struct.unpack('>I8', raw, SINCE), tonumber(ARGV[3])
if kept > 0 and ended + kept > NOW then return 4 end
local left = ended + tonumber(ARGV[2]) - NOW
if redis.call('HEXISTS', KEYS[1], 'k') == 1 then
  left = math.max(left, struct.unpack('>I8', raw, CREATED) + tonumber(ARGV[1]) - NOW)
end
if left > 0 then
  whole = redis.call('HGET', KEYS[1], 'j')
  if whole then
    local spec = string.sub(whole, SPEC, SPEC - 1 + struct.unpack('>I2', whole, SPEC - 2))
    redis.call('HSETNX', KEYS[1], 'd', spec)
    redis.call('HSETNX', KEYS[1], 'l', string.sub(whole, LISTED, SPEC - 3))
  end
  redis.call('HDEL', KEYS[1], 'j', 'p', 'r', 'e', 'g')
  redis.call('HSET', KEYS[1], 'x', '1')
  redis.call('PEXPIRE', KEYS[1], math.ceil(left / 1000))
else
  redis.call('DEL', KEYS[1])
end
return 1
