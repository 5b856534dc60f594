-- job/forestall: creates a job that an event ends before its submit comes, as if the event had come right after the
-- submit. The submit then finds it ended. If the job exists, the script changes nothing.
-- @key job                  the job's hash
-- @arg bounds: packed       the event and limits
-- @pack event: u8           code of the event
-- @pack max_attempts: u16   the most attempts
-- @pack timeout_ms: u32     time-out of one attempt; 0 = none
-- @arg spec: bytes          the job's spec, in protobuf
-- @arg place: bytes         position of its list entry
-- @arg note: bytes          text for the history, at most 240 bytes
-- @arg body_hash: bytes?    hash of the body that the submit will have
-- @ret reply: bytes         the record, if created; else SAID + outcome (already = it exists, missing = the event creates none), 0, now, head
-- @include job/table
-- @include job/head
-- @include job/raw
-- @include job/fresh
if raw then return struct.pack(ANSWER, SAID + ALREADY, 0, NOW) .. string.sub(raw, 1, NAME + string.byte(raw, NAME)) end
local event, max, timeout = struct.unpack(BOUNDS, ARGV[1])
local to = string.byte(BORN, event)
if to == 0 then return struct.pack(ANSWER, SAID + MISSING, 0, NOW) end
local note, body_hash = ARGV[4], ARGV[5] or ''
local line = struct.pack(LINE, 12 + #note, event, to, NOW, 0) .. note
local record = struct.pack(RECORD, to, 2, 0, max, 0, 0, event, 0, timeout,
  0, NOW, 0, 0, 0, 0, 0, NOW, '\0\0\0\0\0\0\0\0', 0, '', '\0\1' .. line)
if body_hash == '' then
  redis.call('HSET', KEYS[1], 's', record, 'd', ARGV[2], 'l', ARGV[3])
else
  redis.call('HSET', KEYS[1], 's', record, 'd', ARGV[2], 'l', ARGV[3], 'k', body_hash)
end
return record
