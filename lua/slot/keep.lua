-- slot/keep: sets the next check of a slot that its job still holds.
-- @key slots                the limit's set
-- @arg member: bytes        job and version at admission
-- @arg seen: bytes          score that the member must still have
-- @arg look: u64            microseconds from now until the next check
-- @ret kept: u64            1 if set, otherwise 0
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.0f', t[1] * 1000000 + t[2] + tonumber(ARGV[3])), ARGV[1])
return 1
