-- home/due: who is due, earliest first, and when the next one is. Changes nothing.
-- @key homes                one shard of homes
-- @arg limit: u64           at most so many
-- @ret now: u64             this node's time
-- @ret next: u64            when the first one that is not due yet will be; 0 = none, or more are due now
-- @ret entries: list<bytes> id, score, and so on
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local next = '0'
if #entries < 2 * tonumber(ARGV[1]) then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  -- Spelled out: Redis writes large scores with an exponent, which is no whole number to a reader.
  if ahead[2] then next = string.format('%.0f', math.min(tonumber(ahead[2]), 9007199254740991)) end
end
return { now, next, entries }
