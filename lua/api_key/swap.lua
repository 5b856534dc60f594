-- api_key/swap: writes an API key anew, if it is still the one that was read. One that was deleted stays so.
-- @key api_key              the key
-- @arg read: bytes          as it was read
-- @arg text: bytes          as it shall be
-- @ret swapped: u64         1 or 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
