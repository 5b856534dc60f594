-- home/rescore: sets when homes are due next. A home changes only if its score is still the one that the caller read.
-- @key homes                one shard of homes
-- @arg triples: list<bytes> id, score as read, microseconds from now; repeated for each home
-- @ret changed: u64         number of homes changed
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local changed = 0
for i = 1, #ARGV, 3 do
  local stands = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if stands and tonumber(stands) == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[i + 2])), ARGV[i])
    changed = changed + 1
  end
end
return changed
