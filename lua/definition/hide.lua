-- definition/hide: hides a definition. Its versions stay, for the runs that have begun with them.
-- @key definition           the definition's hash
-- @arg seen: bytes          the version that must be shown now: `any` or a number
-- @ret outcome: u64         0 = another version is shown, 1 = hidden by this call, 2 = nothing was shown
-- @ret version: u64         the version that was shown; 0 = none
local stands = redis.call('HMGET', KEYS[1], 'n', 'x')
if not stands[1] or stands[2] then return { 2, 0 } end
local shown = tonumber(stands[1])
if ARGV[1] ~= 'any' and tonumber(ARGV[1]) ~= shown then return { 0, shown } end
redis.call('HSET', KEYS[1], 'x', '1')
return { 1, shown }
