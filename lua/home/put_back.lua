-- home/put_back: gives a home to those who have none, due so long from now. One that is there stays as it is.
-- @key homes                one shard of homes
-- @arg pairs: list<bytes>   id, microseconds from now, and so on
-- @ret added: u64           how many had none
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local added = 0
for i = 1, #ARGV, 2 do
  local score = string.format('%.0f', now + tonumber(ARGV[i + 1]))
  added = added + redis.call('ZADD', KEYS[1], 'NX', score, ARGV[i])
end
return added
