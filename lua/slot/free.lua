-- slot/free: gives a slot back, or takes a waiter out of the line; tells who is next.
-- @key slots                the limit's set
-- @arg member: bytes        job and version at admission
-- @arg seen: bytes          only if its score is still this; empty = whatever it is
-- @ret freed: u64           1 or 0
-- @ret next: bytes          the first that waits; empty = nobody
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local freed = 0
if score and (ARGV[2] == '' or tonumber(score) == tonumber(ARGV[2])) then
  freed = redis.call('ZREM', KEYS[1], ARGV[1])
end
return { freed, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1] or '' }
