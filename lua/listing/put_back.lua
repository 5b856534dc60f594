-- listing/put_back: lists a job at its place again. A list that was lost or cut short is filled up with
-- blanks, whose owners then find their places free; where somebody else stands, or too much is
-- missing, the job goes to the end instead and its caller tells the record.
-- @key listing              a tenant's jobs of ten minutes
-- @arg position: u64        where the record says that it stands
-- @arg most: u64            fill up with so many blanks at most
-- @arg job: bytes           raw id
-- @ret position: u64        where it stands now
local at, most, job = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local blank = string.rep('\0', 16)
local length = redis.call('LLEN', KEYS[1])
if at < length then
  local stands = redis.call('LINDEX', KEYS[1], at)
  if stands == job then return at end
  if stands == blank then
    redis.call('LSET', KEYS[1], at, job)
    return at
  end
elseif at - length <= most then
  local blanks = {}
  for i = 1, math.min(at - length, 1000) do blanks[i] = blank end
  for _ = 1, math.floor((at - length) / 1000) do redis.call('RPUSH', KEYS[1], unpack(blanks)) end
  local rest = (at - length) % 1000
  if rest > 0 then redis.call('RPUSH', KEYS[1], unpack(blanks, 1, rest)) end
end
return redis.call('RPUSH', KEYS[1], job) - 1
