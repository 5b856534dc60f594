-- format/raise: notes the format of the data, unless one as new or newer is noted already.
-- @key format               the number
-- @arg known: u64           the newest that the caller knows
-- @ret found: bytes         what was noted before; empty = nothing
local found = redis.call('GET', KEYS[1]) or ''
if found == '' or (tonumber(found) or math.huge) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return found
