-- home/put_back: adds homes for jobs that have none. An existing home does not change.
-- @key homes                one shard of homes
-- @arg pairs: list<bytes>   id, microseconds from now until the home is due; repeated for each job
-- @ret added: u64           number of homes added
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local added = 0
for i = 1, #ARGV, 2 do
  local score = string.format('%.0f', now + tonumber(ARGV[i + 1]))
  added = added + redis.call('ZADD', KEYS[1], 'NX', score, ARGV[i])
end
return added
