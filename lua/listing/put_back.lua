-- listing/put_back: lists a job at its position again. If entries before it are missing, the script adds blank ones,
-- so that the jobs of these positions can be put back later. If another job has the position, or too many entries are
-- missing, the script adds the job at the end, and the caller stores the new position in the record.
-- @key listing              a tenant's jobs of ten minutes
-- @arg position: u64        position that the record has
-- @arg most: u64            the most blank entries to add
-- @arg job: bytes           the job's raw id
-- @ret position: u64        position of the job now
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
