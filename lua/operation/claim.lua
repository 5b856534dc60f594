-- operation/claim: lets one replica carry out a running operation for some time. When the claim has expired, another
-- replica can claim the operation, under a higher fence.
-- @key operation            the operation's hash
-- @arg owner: bytes         the replica that asks; unique per process
-- @arg hold: u64            length of the claim in microseconds
-- @ret outcome: u64         0 = missing, 1 = claimed, 2 = another replica has it, 3 = not running any more
-- @ret fields: list<bytes>  the operation, if claimed: name, value; repeated for each field
local stands = redis.call('HMGET', KEYS[1], 'status', 'owner', 'until')
if not stands[1] then return { 0, {} } end
if stands[1] ~= 'running' then return { 3, {} } end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if stands[2] ~= ARGV[1] then
  if stands[2] and tonumber(stands[3]) > now then return { 2, {} } end
  redis.call('HINCRBY', KEYS[1], 'fence', 1)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
return { 1, redis.call('HGETALL', KEYS[1]) }
