-- line/note: adds names of a topic's lines, with the current time. The set expires `ttl_ms` after the last call.
-- @key lines                the topic's lines
-- @arg ttl_ms: u64          how long the set is kept after this call
-- @arg members: list<bytes> what the jobs of each line require
-- @ret now: u64             this node's time
local t = redis.call('TIME')
local stamp = string.format('%.0f', t[1] * 1000000 + t[2])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], stamp, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return stamp
