-- slot/free: frees a slot, or removes a job that waits for one. Returns the next job that waits.
-- @key slots                the limit's set
-- @arg member: bytes        job and version at admission
-- @arg seen: bytes          score that the member must still have; empty = any
-- @ret freed: u64           1 if removed, otherwise 0
-- @ret next: bytes          the first member that waits; empty = none
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local freed = 0
if score and (ARGV[2] == '' or tonumber(score) == tonumber(ARGV[2])) then
  freed = redis.call('ZREM', KEYS[1], ARGV[1])
end
return { freed, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1] or '' }
