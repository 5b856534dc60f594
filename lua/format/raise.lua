-- format/raise: stores the number of the data format, unless the stored one is the same or newer.
-- @key format               the format number
-- @arg known: u64           the newest format that the caller knows
-- @ret found: bytes         the number before this call; empty = none
local found = redis.call('GET', KEYS[1]) or ''
if found == '' or (tonumber(found) or math.huge) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return found
