-- job/mark_retried: notes which job is this one's retry, if the record is still there.
-- @key job                  the old job's hash
-- @arg retried_as: bytes    the new job's raw id
-- @ret found: u64           1 or 0
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'n', ARGV[1])
return 1
