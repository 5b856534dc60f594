-- api_key/swap: replaces an API key's stored text, if it is still as the caller read it. A deleted key stays deleted.
-- @key api_key              the API key
-- @arg read: bytes          the text as the caller read it
-- @arg text: bytes          the new text
-- @ret swapped: u64         1 if replaced, otherwise 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
