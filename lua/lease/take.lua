-- lease/take: grants a lock if it is free or this owner already has it. The stored value is `owner:fence`.
-- @key lock                 the lock
-- @arg owner: bytes         name of the owner; unique per holder
-- @arg ttl_ms: u64          how long the lock is valid without renewal
-- @ret fence: u64           0 = another owner holds it; otherwise the time of the grant, by this node's clock
-- @ret holder: bytes        `owner:fence` of the current holder
-- @ret left_ms: u64         milliseconds until the lock expires, unless it is renewed; 0 = unknown
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
