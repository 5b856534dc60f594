-- reread/mark: notes what was last seen whole, if nobody has noted anything since it was read.
-- @key mark                 the note
-- @arg read: bytes          as read; empty = there was none
-- @arg mark: bytes          what is known now
-- @ret moved: u64           1 or 0
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
