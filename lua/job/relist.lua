-- job/relist: notes another place in the listing, if the record still has the one that was read.
-- @key job                  the job's hash
-- @arg read: bytes          place as read
-- @arg place: bytes         where it is listed now
-- @ret changed: u64         1 or 0
-- A job that is whole has its place within, see job/raw.
local place = redis.call('HGET', KEYS[1], 'l')
if not place then
  local whole = redis.call('HGET', KEYS[1], 'j')
  place = whole and string.sub(whole, 15, 22)
end
if place ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'l', ARGV[2])
return 1
