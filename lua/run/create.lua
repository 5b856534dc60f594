-- run/create: stores a run, unless its id is taken. A repetition of the call that created it answers the same, until the
-- run is saved. The script never reads the values.
-- @key run                  the run's hash
-- @arg version: bytes       the first version: a counter, then the caller's random nonce
-- @arg place: bytes         position of its list entry
-- @arg fields: list<bytes>  name, value; repeated for each field
-- @ret created: u64         1 if created, by this call or by an earlier try of it; 0 if the id is taken
-- @ret now: u64             this node's time
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  return { redis.call('HGET', KEYS[1], 'v') == ARGV[1] and 1 or 0, now }
end
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'l', ARGV[2])
for i = 3, #ARGV, 1000 do redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
return { 1, now }
