-- home/set: gives jobs their home entry, due so long from now, whatever stood there before.
-- @key homes                one shard of homes
-- @arg after: u64           microseconds from now
-- @arg jobs: list<bytes>    ids
-- @ret now: u64             this node's time
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local score = string.format('%.0f', now + tonumber(ARGV[1]))
local entries = {}
for i = 2, #ARGV do
  entries[#entries + 1] = score
  entries[#entries + 1] = ARGV[i]
end
redis.call('ZADD', KEYS[1], unpack(entries))
return string.format('%.0f', now)
