-- home/due: lists the homes that are due, earliest first, and the time of the next one. Changes nothing.
-- @key homes                one shard of homes
-- @arg limit: u64           the most homes to return
-- @ret now: u64             this node's time
-- @ret next: u64            when the next home is due; 0 = there is none, or more than `limit` may be due now
-- @ret entries: list<bytes> id, score; repeated for each home
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local next = '0'
if #entries < 2 * tonumber(ARGV[1]) then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  -- Formatted here, because Redis writes large scores with an exponent and callers parse a whole number.
  if ahead[2] then next = string.format('%.0f', math.min(tonumber(ahead[2]), 9007199254740991)) end
end
return { now, next, entries }
