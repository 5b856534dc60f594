-- run/delete: removes a run, if its version is still the one that the caller has read.
-- @key run                  the run's hash
-- @arg seen: bytes          the version that the caller has read
-- @ret outcome: u64         1 = removed, 2 = the version is another one, 3 = there is no such run
local stands = redis.call('HGET', KEYS[1], 'v')
if not stands then return 3 end
if stands ~= ARGV[1] then return 2 end
redis.call('UNLINK', KEYS[1])
return 1
