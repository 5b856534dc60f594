-- job/apply: moves one job along the state table, if the caller's view of it still holds.
-- The only script that changes a job's state. Asked again by the same holder it answers
-- `already` with the same values and changes nothing; its caller then repeats the effects.
-- @key job                  the job's hash
-- @arg event: u64           what happened
-- @arg seen: u64            the version (offers, looks) or fence (workers) that the caller acts on
-- @arg wait: u64            microseconds until run_at or the approval's expiry, for events that set it
-- @arg lease: u64           microseconds, for a start
-- @arg start_id: bytes      eight bytes, for a start
-- @arg worker: bytes        for a start
-- @arg note: bytes          for the history, at most 240 bytes
-- @arg result: bytes        to store with it; empty = none
-- @arg error: bytes         to store with it; empty = none
-- @ret reply: bytes         outcome, forward, now, head; the outcome alone if the job is missing
-- @include job/table
-- @include job/head
-- @include job/look
local raw = redis.call('HGET', KEYS[1], 's')
if not raw then return struct.pack('>BI8I8', MISSING, 0, NOW) end
local event, seen = tonumber(ARGV[1]), tonumber(ARGV[2])
local state, version, attempt, max, lost, released, last, ended_by, timeout, fence, since, due, lease,
  deadline, start_by, started, created, start_id, worker, after = struct.unpack(HEAD, raw)
local head = string.sub(raw, 1, after - 1)

-- Does the caller's view hold, or was this done already?
local kind = string.byte(SEEN, event)
if kind == BY_VERSION then
  if version == seen + 1 and last == event and (event ~= START or start_id == ARGV[5]) then
    return answer(ALREADY, 0, head)
  end
  if version ~= seen then return answer(STALE, 0, head) end
elseif kind == BY_FENCE then
  if fence ~= seen or fence == 0 then return answer(STALE, 0, head) end
  if state ~= RUNNING then
    if ended_by == event then return answer(ALREADY, 0, head) end
    return answer(ILLEGAL, 0, head)
  end
elseif state == CANCELLED then
  return answer(ALREADY, 0, head)
end
local to = string.byte(TABLE, (state - 1) * EVENTS + event)
if to == 0 then return answer(ILLEGAL, 0, head) end

-- Has its moment come, by this node's clock?
local overdue = deadline > 0 and deadline <= NOW
local unstarted = started == 0 and start_by > 0 and start_by <= NOW
local moment, come = string.byte(DUE, event), true
if moment == DUE_RUN_AT then come = due <= NOW
elseif moment == DUE_LEASE_END then come = lease <= NOW
elseif moment == DUE_ATTEMPT_END then come = due > 0 and due <= NOW
elseif moment == DUE_ANY_TIME_OUT then come = overdue or (state == RUNNING and due > 0 and due <= NOW)
elseif moment == DUE_ANY_EXPIRY then come = overdue or unstarted or (state == AWAITING_APPROVAL and due <= NOW)
elseif event == SCHEDULE then come = due > NOW
elseif event == DISPATCH or event == HOLD then come = state ~= PENDING or due <= NOW
elseif event == START then come = not overdue and not unstarted end
if not come then return answer(EARLY, 0, head) end

local before = look(state, false, since, due, lease, deadline, start_by, started)
if state == RUNNING then
  ended_by = event
  -- Cut off by a cancel or the clock, its worker may still be at it until the lease ends.
  if not (to >= SUCCEEDED and (event == CANCEL or event == TIME_OUT)) then lease = 0 end
end
if event == START then
  -- Progress of an earlier attempt is not this one's, even if that attempt was given back.
  if started > 0 then redis.call('HDEL', KEYS[1], 'g') end
  attempt = attempt + 1
  fence = math.max(fence + 1, NOW)
  lease = NOW + tonumber(ARGV[4])
  started = NOW
  start_id, worker = ARGV[5], ARGV[6]
  ended_by = 0
  if timeout > 0 then due = NOW + timeout * 1000 else due = 0 end
elseif to == SCHEDULED or to == RETRYING or to == AWAITING_APPROVAL then
  if event ~= SCHEDULE then due = NOW + tonumber(ARGV[3]) end
else
  due = 0
end
if event == RELEASE then
  attempt = attempt - 1
  released = released + 1
elseif moment == DUE_LEASE_END then
  lost = lost + 1
end

local forward = 0
if to < SUCCEEDED then
  local next = look(to, true, NOW, due, lease, deadline, start_by, started)
  if next < before then forward = math.max(next - NOW, 0) + 1 end
end
head = struct.pack(HEAD, to, version + 1, attempt, max, lost, released, event, ended_by, timeout, fence, NOW, due,
  lease, deadline, start_by, started, created, start_id, #worker, worker)
local fields = { 's', head .. remember(string.sub(raw, after), line(event, to, attempt, ARGV[7])) }
if ARGV[8] ~= '' then
  fields[3] = 'r'
  fields[4] = ARGV[8]
end
if ARGV[9] ~= '' then
  fields[#fields + 1] = 'e'
  fields[#fields + 1] = ARGV[9]
end
redis.call('HSET', KEYS[1], unpack(fields))
return answer(APPLIED, forward, head)
