-- limit/take: takes up to n tokens of a rate limit (GCRA), never more than the burst.
-- @key bucket               the limit's state: the time at which all tokens are available again
-- @arg n: u64               tokens wanted
-- @arg interval: u64        nanoseconds between two tokens at the steady rate
-- @arg burst: u64           the most tokens at once
-- @arg whole: u64           1 = take all n tokens or none
-- @ret granted: u64         tokens taken
-- @ret retry_after: u64     microseconds until one more token (if `whole`, all n tokens) is available
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local n, interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2]) / 1000, tonumber(ARGV[3])
local full = now + burst * interval
local tat = math.min(math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now), full)
local granted = math.min(n, math.floor((full - tat) / interval + 0.000001))
local wanted = 1
if ARGV[4] == '1' then
  wanted = n
  if granted < n then granted = 0 end
end
if granted > 0 then
  tat = tat + granted * interval
  redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil((tat - now) / 1000) + 1000)
end
local after = 0
if granted < n then after = math.ceil(math.max(tat + wanted * interval - full, 0)) end
return { string.format('%.0f', granted), string.format('%.0f', after) }
