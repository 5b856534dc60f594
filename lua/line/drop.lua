-- line/drop: removes the name of a line, if no scheduler has noted it since the caller read it.
-- @key lines                the topic's lines
-- @arg member: bytes        what the line's jobs require
-- @arg read: u64            score as the caller read it
-- @ret dropped: u64         1 if removed, otherwise 0
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
