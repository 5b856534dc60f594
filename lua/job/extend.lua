-- job/extend: extends the lease of a running attempt, and stores its progress. It never shortens a lease. A lease that
-- has run out can still be extended, if the reconciler has not ended the attempt yet.
-- @key job                  the job's hash
-- @arg fence: u64           the attempt's fence
-- @arg lease: u64           microseconds from now
-- @arg progress: bytes      progress to store; empty = none
-- @ret reply: bytes         SAID + outcome (applied, stale, missing), forward, now, head
-- @include job/table
-- @include job/head
-- @include job/raw
-- @include job/fresh
if not raw then return struct.pack(ANSWER, SAID + MISSING, 0, NOW) end
local head_end = NAME + string.byte(raw, NAME)
if string.byte(raw, 1) ~= RUNNING or struct.unpack('>I8', raw, 19) ~= tonumber(ARGV[1]) then
  return struct.pack(ANSWER, SAID + STALE, 0, NOW) .. string.sub(raw, 1, head_end)
end
local lease = math.max(struct.unpack('>I8', raw, 43), NOW + tonumber(ARGV[2]))
local packed = string.sub(raw, 1, 42) .. struct.pack('>I8', lease) .. string.sub(raw, 51)
for try = 1, 2 do
  local wrote
  if ARGV[3] == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed)
  else
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'g', ARGV[3])
  end
  if type(wrote) ~= 'table' then break end
  -- At its memory limit, Redis refuses this write. It only replaces a number, so try again after job/full.
  if try == 2 or not string.find(wrote.err, 'OOM', 1, true) then return wrote end
  -- @include job/full
end
return struct.pack(ANSWER, SAID + APPLIED, 0, NOW) .. string.sub(packed, 1, head_end)
