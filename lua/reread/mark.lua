-- reread/mark: stores the mark of the last complete reread, if it has not changed since the caller read it.
-- @key mark                 the mark
-- @arg read: bytes          the mark as the caller read it; empty = none
-- @arg mark: bytes          the new mark
-- @ret moved: u64           1 if stored, otherwise 0
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
