-- home/set: sets the homes of jobs to one time from now, and replaces existing homes.
-- @key homes                one shard of homes
-- @arg after: u64           microseconds from now until the homes are due
-- @arg jobs: list<bytes>    ids of the jobs
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
