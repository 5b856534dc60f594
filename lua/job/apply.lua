-- job/apply: applies one event of the state table to a job, if the job is still as the caller saw it.
-- This is the only script that changes a job's state. If the same holder repeats a call, the script changes nothing and
-- answers `already` with the same values; the caller then repeats the effects.
-- @key job                  the job's hash
-- @arg ask: packed          the event and its numbers
-- @pack event: u8           code of the event
-- @pack seen: u64           the version (offers, checks) or the fence (workers) that the caller has read
-- @pack wait: u64           microseconds until run_at or the approval's expiry, for events that set one of them
-- @pack lease: u64          microseconds, for a start; for a dispatch: 0 = no slot, 1 = a slot, 2 = a place, with or without a slot
-- @pack start_id: bytes8    id of the start request, for a start
-- @arg worker: bytes?       name of the worker, for a start
-- @arg result: bytes?       result to store with the event
-- @arg error: bytes?        error to store with the event
-- @arg note: bytes?         text for the history, at most 240 bytes; default for a start: the worker
-- @ret reply: bytes         the new record, if applied and the home need not move; else SAID + outcome, forward, now, head
-- The reply has no head if the job is missing.
-- @include job/table
-- @include job/head

-- `ENDED` and `STARTED` are the formats of a whole record that has ended or runs. They copy unchanged parts as bytes.
local ENDED = '>BI4I2I2I2BBBI4I8I8I8I8c0I2c0BBBI8I2c0'
local STARTED = '>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2c0BBBI8I2c0'
local FIRST_LOOK = 30000000
local event, seen, wait, asked_lease, asked_id = struct.unpack(ASK, ARGV[1])
local note = ARGV[5] or ''
-- @include job/raw

-- Nearly every job has two events: a first start before its first check, and an end that its worker reports. Each has a
-- short path here. It writes the same record as the general path below, and costs a third less of this node's time. The
-- start of a job that is stored as one field `j` (see job/raw) has a path that is shorter still.
if whole and event == START and seen == 1 and note == '' and asked_lease >= FIRST_LOOK then
  local accepted, most, limit = struct.unpack(WHOLE, whole)
  if accepted + FIRST_LOOK > NOW and (limit == 0 or limit * 1000 >= FIRST_LOOK) then
    local worker, due = ARGV[2] or '', 0
    if limit > 0 then due = NOW + limit * 1000 end
    local started = struct.pack(STARTED, RUNNING, 2, 1, most, 0, 0, event, 0, limit, NOW,
      NOW, due, NOW + asked_lease, 0, 0, NOW, accepted, asked_id, #worker, worker, 1, '',
      12 + #worker, event, RUNNING, NOW, 1, worker)
    redis.call('HSET', KEYS[1], 's', started)
    return started
  end
end
-- @include job/fresh
if not raw then return struct.pack(ANSWER, SAID + MISSING, 0, NOW) end
local state, version, attempt, max, lost, released, last, ended_by, timeout, fence = struct.unpack(STANDING, raw)
local kind = string.byte(SEEN, event)
local to = string.byte(TABLE, (state - 1) * EVENTS + event)
-- The end of the worker's name, and the number of history lines after it.
local named = NAME + string.byte(raw, NAME)
local high, count = string.byte(raw, named + 1, named + 2)
local short = high == 0 and count < 8
local packed, top, forward
if short and kind == BY_FENCE and state == RUNNING and fence == seen and to >= SUCCEEDED then
  packed = struct.pack(ENDED, to, version + 1, attempt, max, lost, released, event, event, timeout, fence, NOW, 0, 0,
    string.sub(raw, DEADLINE, named), count + 1, string.sub(raw, named + 3), 12 + #note, event, to, NOW, attempt, note)
else
  local since, due, lease, deadline, start_by, started, created = struct.unpack(MOMENTS, raw, SINCE)
  if short and event == START and to == RUNNING and version == seen and started == 0 and note == ''
    and due <= NOW and deadline == 0 and start_by == 0 and since + FIRST_LOOK > NOW
    and asked_lease >= FIRST_LOOK and (timeout == 0 or timeout * 1000 >= FIRST_LOOK) then
    local worker = ARGV[2] or ''
    attempt = attempt + 1
    if timeout > 0 then due = NOW + timeout * 1000 else due = 0 end
    packed = struct.pack(STARTED, to, version + 1, attempt, max, lost, released, event, 0, timeout, math.max(fence + 1, NOW),
      NOW, due, NOW + asked_lease, 0, 0, NOW, created, asked_id, #worker, worker, count + 1, string.sub(raw, named + 3),
      12 + #worker, event, to, NOW, attempt, worker)
  else
    count = high * 256 + count
    local start_id, worker = string.sub(raw, START_ID, NAME - 1), string.sub(raw, NAME + 1, named)
    -- Is the job still as the caller saw it, or was this event applied before?
    local refusal
    if kind == BY_VERSION then
      if version == seen + 1 and last == event and (event ~= START or start_id == asked_id) then
        refusal = ALREADY
      elseif version ~= seen then
        refusal = STALE
      end
    elseif kind == BY_FENCE then
      if fence ~= seen or fence == 0 then
        refusal = STALE
      elseif state ~= RUNNING then
        if ended_by == event then refusal = ALREADY else refusal = ILLEGAL end
      end
    elseif state == CANCELLED then
      refusal = ALREADY
    end
    if not refusal and to == 0 then refusal = ILLEGAL end

    -- Has the time for this event come, by this node's clock?
    local moment = string.byte(DUE, event)
    if not refusal then
      local overdue = deadline > 0 and deadline <= NOW
      local unstarted = started == 0 and start_by > 0 and start_by <= NOW
      local come = true
      if moment == DUE_RUN_AT then come = due <= NOW
      elseif moment == DUE_LEASE_END then come = lease <= NOW
      elseif moment == DUE_ATTEMPT_END then come = due > 0 and due <= NOW
      elseif moment == DUE_ANY_TIME_OUT then come = overdue or (state == RUNNING and due > 0 and due <= NOW)
      elseif moment == DUE_ANY_EXPIRY then come = overdue or unstarted or (state == AWAITING_APPROVAL and due <= NOW)
      elseif event == SCHEDULE then come = due > NOW
      elseif event == DISPATCH or event == HOLD then come = state ~= PENDING or due <= NOW
      elseif event == START then come = not overdue and not unstarted and (state ~= PENDING or due <= NOW) end
      if not come then refusal = EARLY end
    end
    if refusal then return struct.pack(ANSWER, SAID + refusal, 0, NOW) .. string.sub(raw, 1, named) end

    -- @include job/look
    local lives = to < SUCCEEDED
    local before = lives and look(state, false, since, due, lease, deadline, start_by, started)
    if state == RUNNING then
      ended_by = event
      -- After a cancel or a time-out, the worker may still run the job until the lease ends.
      if event ~= CANCEL and event ~= TIME_OUT and event ~= CUT_SHORT then lease = 0 end
    end
    if event == START then
      -- Remove the progress of an earlier attempt, even if its worker released that attempt.
      if started > 0 then redis.call('HDEL', KEYS[1], 'g') end
      attempt = attempt + 1
      fence = math.max(fence + 1, NOW)
      lease = NOW + asked_lease
      started = NOW
      start_id, worker = asked_id, ARGV[2] or ''
      if note == '' then note = worker end
      ended_by = 0
      if timeout > 0 then due = NOW + timeout * 1000 else due = 0 end
    elseif to == SCHEDULED or to == RETRYING or to == AWAITING_APPROVAL then
      if event ~= SCHEDULE then due = NOW + wait end
    else
      due = 0
    end
    if event == RELEASE then
      attempt = attempt - 1
      released = released + 1
    elseif moment == DUE_LEASE_END then
      lost = lost + 1
    end

    forward = 0
    if lives then
      local next = look(to, true, NOW, due, lease, deadline, start_by, started)
      if next < before then forward = math.max(next - NOW, 0) + 1 end
    end
    -- The history keeps the newest 63 lines.
    local first = named + 3
    if count < 63 then count = count + 1 else first = first + 1 + string.byte(raw, first) end
    top = struct.pack(TOP, to, version + 1, attempt, max, lost, released, event, ended_by, timeout, fence, NOW, due,
      lease, deadline, start_by, started, created, start_id, #worker, worker, count)
    packed = top .. string.sub(raw, first) .. struct.pack(LINE, 12 + #note, event, to, NOW, attempt) .. note
  end
end

local result, error = ARGV[3] or '', ARGV[4] or ''
for try = 1, 2 do
  local wrote
  if result == '' and error == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed)
  elseif error == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'r', result)
  elseif result == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'e', error)
  else
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'r', result, 'e', error)
  end
  if type(wrote) ~= 'table' then break end
  -- At its memory limit, Redis refuses this write. A job must still be able to end, so try again after job/full.
  if try == 2 or to < SUCCEEDED or not string.find(wrote.err, 'OOM', 1, true) then return wrote end
  -- @include job/full
end
-- A dispatch has no lease, so the argument says what the job holds: 1 = a concurrency slot, 2 = a place of its topic,
-- taken under this version. A later dispatch without both removes what an earlier one stored.
if event == DISPATCH then
  if asked_lease > 0 then
    redis.call('HSET', KEYS[1], 'c', string.format('%.0f', version) .. (asked_lease > 1 and 't' or ''))
  elseif version > 2 then
    redis.call('HDEL', KEYS[1], 'c')
  end
end
if not top then return packed end
return struct.pack(ANSWER, SAID + APPLIED, forward, NOW) .. top
