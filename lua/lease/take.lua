-- lease/take: grants a lock if it is free or already this owner's. The value is `owner:fence`.
-- @key lock                 the lock
-- @arg owner: bytes         who asks; unique per holder
-- @arg ttl_ms: u64          how long it holds without renewal
-- @ret fence: u64           0 = held by somebody else; otherwise the time of the grant, by this node
-- @ret holder: bytes        who holds it now
-- @ret left_ms: u64         until when, if nobody renews it; 0 = nobody knows
local value = redis.call('GET', KEYS[1])
if value then
  local owner, fence = string.match(value, '^(.*):(%d+)$')
  if owner ~= ARGV[1] then
    return { '0', value, string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), 0)) }
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { fence, value, ARGV[2] }
end
local t = redis.call('TIME')
local fence = string.format('%.0f', t[1] * 1000000 + t[2])
value = ARGV[1] .. ':' .. fence
redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
return { fence, value, ARGV[2] }
