-- home/drop_orphan: removes an entry that has no record, if it is due and its score is the one that was read.
-- @key homes                one shard of homes
-- @arg job: bytes           id
-- @arg read: u64            score as read
-- @ret dropped: u64         1 or 0
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stands = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1)
if stands ~= tonumber(ARGV[2]) or stands > now then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
