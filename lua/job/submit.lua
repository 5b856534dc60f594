-- job/submit: creates a job, or answers that it exists. A repeated call changes nothing. A job that Redis has lost
-- keeps its time of acceptance when it is created again, and the times that are relative to it.
-- @key job                  the job's hash
-- @arg bounds: packed       limits; times in microseconds: positive = absolute, negative = after the acceptance, 0 = none
-- @pack max_attempts: u16   the most attempts
-- @pack timeout_ms: u32     time-out of one attempt; 0 = none
-- @pack run_at: i64         the job must not run before this time
-- @pack start_by: i64       the first attempt must start by this time
-- @pack deadline: i64       the job must have ended by this time
-- @pack accepted: u64       time of acceptance of a job that is created again; 0 = now
-- @arg spec: bytes          the job's spec, in protobuf
-- @arg payload: bytes       JSON, verbatim; empty = none
-- @arg place: bytes         position of its list entry; empty = none
-- @arg body_hash: bytes?    hash of the request's body, for an idempotent submit
-- @ret reply: bytes         the record, if created; else SAID + outcome (2 = exists, 3 = with another body), 0, now, head
-- @include job/table
-- @include job/head
local EXISTS, ANOTHER = 2, 3
local spec, payload, place, body_hash = ARGV[2], ARGV[3], ARGV[4], ARGV[5] or ''
-- @include job/raw
-- @include job/fresh
if raw then
  local outcome = EXISTS
  if body_hash ~= '' and redis.call('HGET', KEYS[1], 'k') ~= body_hash then outcome = ANOTHER end
  return struct.pack(ANSWER, SAID + outcome, 0, NOW) .. string.sub(raw, 1, NAME + string.byte(raw, NAME))
end
local max, timeout, run_at, start_by, deadline, created = struct.unpack(BOUNDS, ARGV[1])
local lines = '\0\0'
if created == 0 then
  created = NOW
else
  local note = 'forgotten, and made again from its submit'
  lines = '\0\1' .. struct.pack(LINE, 12 + #note, 0, PENDING, NOW, 0) .. note
end
if run_at < 0 then run_at = created - run_at end
if start_by < 0 then start_by = created - start_by end
if deadline < 0 then deadline = created - deadline end
local record = struct.pack(RECORD, PENDING, 1, 0, max, 0, 0, 0, 0, timeout,
  0, NOW, run_at, 0, deadline, start_by, 0, created, '\0\0\0\0\0\0\0\0', 0, '', lines)
if payload ~= '' and body_hash == '' and place ~= '' then
  -- The usual case, without building a table.
  redis.call('HSET', KEYS[1], 's', record, 'd', spec, 'p', payload, 'l', place)
  return record
end
local fields = { 's', record, 'd', spec }
if payload ~= '' then
  fields[5] = 'p'
  fields[6] = payload
end
if body_hash ~= '' then
  fields[#fields + 1] = 'k'
  fields[#fields + 1] = body_hash
end
if place ~= '' then
  fields[#fields + 1] = 'l'
  fields[#fields + 1] = place
end
redis.call('HSET', KEYS[1], unpack(fields))
return record
