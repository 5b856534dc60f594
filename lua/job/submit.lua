-- job/submit: creates a job, or tells that it exists. A repeat changes nothing.
-- @key job                  the job's hash
-- @arg max_attempts: u64    how many starts there may be
-- @arg timeout_ms: u64      longest one attempt may take; 0 = no limit
-- @arg run_at: i64          moments: positive is absolute microseconds, negative from now on, 0 none
-- @arg start_by: i64
-- @arg deadline: i64
-- @arg spec: bytes          what was asked for
-- @arg payload: bytes       JSON, verbatim; empty = none
-- @arg body_hash: bytes     of an idempotent submit; empty = none
-- @arg place: bytes         where the listing names it; empty = nowhere in particular
-- @ret reply: bytes         outcome (1 created, 2 exists, 3 exists with another body), forward, now, head
-- @include job/table
-- @include job/head
local raw = redis.call('HGET', KEYS[1], 's')
if raw then
  local length = string.byte(raw, 91)
  local outcome = 2
  if ARGV[8] ~= '' and redis.call('HGET', KEYS[1], 'k') ~= ARGV[8] then outcome = 3 end
  return answer(outcome, 0, string.sub(raw, 1, 91 + length))
end
local function moment(text)
  local at = tonumber(text)
  if at < 0 then return NOW - at end
  return at
end
local head = struct.pack(HEAD, PENDING, 1, 0, tonumber(ARGV[1]), 0, 0, 0, 0, tonumber(ARGV[2]),
  0, NOW, moment(ARGV[3]), 0, moment(ARGV[5]), moment(ARGV[4]), 0, NOW, '\0\0\0\0\0\0\0\0', 0, '')
local fields = { 's', head .. '\0\1' .. line(0, PENDING, 0, ''), 'd', ARGV[6] }
if ARGV[7] ~= '' then
  fields[5] = 'p'
  fields[6] = ARGV[7]
end
if ARGV[8] ~= '' then
  fields[#fields + 1] = 'k'
  fields[#fields + 1] = ARGV[8]
end
if ARGV[9] ~= '' then
  fields[#fields + 1] = 'l'
  fields[#fields + 1] = ARGV[9]
end
redis.call('HSET', KEYS[1], unpack(fields))
return answer(1, 0, head)
