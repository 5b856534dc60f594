-- definition/put: stores a definition under the next version, unless it is equal to the latest one. A version is never
-- used twice, also after the definition was hidden.
-- @key definition           the definition's hash
-- @arg writer: bytes        unique per call, so that a repeated call gets the same answer as the first
-- @arg seen: bytes          the version that must be shown now: `any`, a number, or 0 = none
-- @arg hash: bytes          hash of the content
-- @arg text: bytes          the content
-- @ret outcome: u64         0 = another version is shown, 1 = stored, by this call or an earlier try of it, 2 = no change
-- @ret version: u64         the version that is shown now; 0 = none
local stands = redis.call('HMGET', KEYS[1], 'n', 'h', 'w', 'x')
local latest = tonumber(stands[1] or '0')
local shown = stands[4] and 0 or latest
if stands[3] == ARGV[1] then return { 1, shown } end
if ARGV[2] ~= 'any' and tonumber(ARGV[2]) ~= shown then return { 0, shown } end
if shown > 0 and stands[2] == ARGV[3] then return { 2, shown } end
local t = redis.call('TIME')
local version = string.format('%.0f', latest + 1)
redis.call('HSET', KEYS[1], 'n', version, 'h', ARGV[3], 'w', ARGV[1], version, ARGV[4],
  't' .. version, string.format('%.0f', t[1] * 1000000 + t[2]))
redis.call('HDEL', KEYS[1], 'x')
return { 1, latest + 1 }
