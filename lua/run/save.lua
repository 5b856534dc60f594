-- run/save: writes what changed of a run, if its version is still the one that the caller has read. A version is a
-- counter and the random nonce of the replica that saved it, compared as one: after a failover, two replicas can reach
-- the same counter. The script never reads the values.
-- @key run                  the run's hash
-- @arg seen: bytes          the version that the caller has read
-- @arg next: bytes          the version to store; unique per call, so that a repeated call gets the same answer
-- @arg set: u64             how many of the following are names and values to write; the others are names to remove
-- @arg fields: list<bytes>  name, value; repeated for each field to write. Then the names to remove
-- @ret outcome: u64         1 = saved, by this call or by an earlier try of it; 0 = the version is another one
-- @ret version: bytes       the version now; empty = there is no such run
-- @ret now: u64             this node's time
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local stands = redis.call('HGET', KEYS[1], 'v')
if stands == ARGV[2] then return { 1, stands, now } end
if stands ~= ARGV[1] then return { 0, stands or '', now } end
local set = 3 + tonumber(ARGV[3])
-- If Redis is at its memory limit, it refuses the first write, and nothing is changed.
redis.call('HSET', KEYS[1], 'v', ARGV[2])
for i = 4, set, 1000 do redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, set))) end
for i = set + 1, #ARGV, 1000 do redis.call('HDEL', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
return { 1, ARGV[2], now }
