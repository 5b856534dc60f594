-- home/forward: moves homes to an earlier time: min(score - 1, now + after); adds a home that is missing. The score
-- always changes, so a reconciler that has read the old score fails to re-score the home, and checks the job again.
-- @key homes                one shard of homes
-- @arg pairs: list<bytes>   id, microseconds from now; repeated for each home
-- @ret now: u64             this node's time
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i = 1, #ARGV, 2 do
  local score = now + tonumber(ARGV[i + 1])
  local stands = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if stands then score = math.min(tonumber(stands) - 1, score) end
  redis.call('ZADD', KEYS[1], string.format('%.0f', score), ARGV[i])
end
return string.format('%.0f', now)
