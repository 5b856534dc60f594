-- job/mark_retried: stores the id of the job that retries this one, if this job's record still exists.
-- @key job                  the old job's hash
-- @arg retried_as: bytes    the new job's raw id
-- @ret found: u64           1 if the record exists, otherwise 0
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'n', ARGV[1])
return 1
