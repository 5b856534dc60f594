-- timeline/add: adds entries to the end of a run's timeline. Entries that it has already are skipped, so a call may be
-- repeated. The first 1,000 entries and the last 1,000 stay; those between are removed, 100 or more at once.
-- @key timeline             the run's timeline: the number of the next entry, then the entries
-- @arg first: u64           number of the first of these entries, counted from 0 over the whole run
-- @arg entries: list<bytes> the entries; none is empty
-- @ret next: u64            number of the next entry
local KEPT, SLACK = 1000, 100
local stands = redis.call('LINDEX', KEYS[1], 0)
local first = tonumber(ARGV[1])
local known, next = tonumber(stands or '0'), first + #ARGV - 1
if known >= next then return stands or '0' end
local text = string.format('%.0f', next)
if stands then redis.call('LSET', KEYS[1], 0, text) else redis.call('RPUSH', KEYS[1], text) end
for i = 2 + math.max(known - first, 0), #ARGV, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
local length = redis.call('LLEN', KEYS[1])
if length > 1 + KEPT + KEPT + SLACK then
  for i = 1 + KEPT, length - KEPT - 1 do redis.call('LSET', KEYS[1], i, '') end
  redis.call('LREM', KEYS[1], 0, '')
end
return text
