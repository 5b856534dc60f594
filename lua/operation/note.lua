-- operation/note: stores the progress of an operation, if the caller's fence is still valid. It stores progress after a
-- cancel too, but changes the status of a running operation only.
-- @key operation            the operation's hash
-- @arg fence: u64           fence of the caller's claim
-- @arg hold: u64            microseconds from now for which the claim is extended
-- @arg status: bytes        `running`, or the final status
-- @arg fields: list<bytes>  name, value; repeated for each field
-- @ret status: bytes        the status now; empty if another replica has the operation
local stands = redis.call('HMGET', KEYS[1], 'fence', 'status')
if stands[1] ~= ARGV[1] then return '' end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if stands[2] ~= 'running' then return stands[2] end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if ARGV[3] == 'running' then
  redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
else
  redis.call('HSET', KEYS[1], 'status', ARGV[3], 'finished_at', string.format('%.0f', now))
end
return ARGV[3]
