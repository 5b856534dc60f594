-- operation/note: stores how far an operation is, if the fence is still the carrier's. What was done is
-- noted after a cancel too; only a running operation can end.
-- @key operation            the operation's hash
-- @arg fence: u64           the carrier's
-- @arg hold: u64            microseconds that it goes on to carry it
-- @arg status: bytes        `running`, or how it ended
-- @arg fields: list<bytes>  name, value, and so on
-- @ret status: bytes        what stands now; empty if another carries it
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
