-- limit/give: returns tokens to a rate limit, for requests that turned out to cost nothing. Never exceeds the burst.
-- @key bucket               the limit's state: the time at which all tokens are available again
-- @arg n: u64               tokens to return
-- @arg interval: u64        nanoseconds between two tokens at the steady rate
-- @ret left: u64            microseconds until all tokens are available again
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0) - tonumber(ARGV[1]) * tonumber(ARGV[2]) / 1000
if tat <= now then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil((tat - now) / 1000) + 1000)
return math.ceil(tat - now)
