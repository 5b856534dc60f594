-- home/drop_orphan: removes the home of a job without a record, if it is due and its score is still as the caller read it.
-- @key homes                one shard of homes
-- @arg job: bytes           the job's id
-- @arg read: u64            score as the caller read it
-- @ret dropped: u64         1 if removed, otherwise 0
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stands = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1)
if stands ~= tonumber(ARGV[2]) or stands > now then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
