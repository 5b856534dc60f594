-- note/put: what an HTTP worker's request was given. The first note wins and never changes.
-- @key note                 the request's note
-- @arg offers: bytes        raw ids and versions
-- @arg ttl_ms: u64          how long it is kept
-- @ret offers: bytes        the note that stands
local stands = redis.call('GET', KEYS[1])
if stands then return stands end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
