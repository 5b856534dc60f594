-- line/drop: removes the name of a line, if nobody has noted it since it was read.
-- @key lines                the topic's lines
-- @arg member: bytes        what its jobs require
-- @arg read: u64            score as read
-- @ret dropped: u64         1 or 0
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
