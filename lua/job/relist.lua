-- job/relist: stores a new position of the list entry, if the record still has the one that the caller read.
-- @key job                  the job's hash
-- @arg read: bytes          position as the caller read it
-- @arg place: bytes         position of the list entry now
-- @ret changed: u64         1 if stored, otherwise 0

-- A job that is stored as one field `j` has the position inside that field, see job/raw.
local place = redis.call('HGET', KEYS[1], 'l')
if not place then
  local whole = redis.call('HGET', KEYS[1], 'j')
  place = whole and string.sub(whole, 15, 22)
end
if place ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'l', ARGV[2])
return 1
