-- note/put: stores which offers an HTTP worker's lease request received. The first note wins and never changes.
-- @key note                 the request's note
-- @arg offers: bytes        raw ids and versions of the offers
-- @arg ttl_ms: u64          how long the note is kept
-- @ret offers: bytes        the stored note
local stands = redis.call('GET', KEYS[1])
if stands then return stands end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
