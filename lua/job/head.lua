-- The packed field `s` of a job's hash: where the job stands, then its bounded history.
-- One field, read and written as one: half the CPU of separate fields.
--   state version attempt max_attempts lost released last_event ended_by timeout_ms
--   fence since due lease_until deadline start_by started created start_id worker
-- `due` is run_at, the approval's expiry, or the attempt's time-out, by state.
local HEAD = '>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0'
local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]

-- One line of history: what happened, where it led, when, which attempt, and a note of at most 240 bytes.
local function line(event, state, attempt, note)
  return struct.pack('>BBBI8I2', 12 + #note, event, state, NOW, attempt) .. note
end

-- The history that stands in `raw` from `at` on, with a line added; keeps the first and the last 63.
local function remember(raw, at, added)
  local count = struct.unpack('>I2', raw, at)
  if count < 64 then
    return struct.pack('>I2', count + 1) .. string.sub(raw, at + 2) .. added
  end
  local second = at + 3 + string.byte(raw, at + 2)
  local third = second + 1 + string.byte(raw, second)
  return string.sub(raw, at, second - 1) .. string.sub(raw, third) .. added
end

-- What a caller hears: outcome, whether and how far ahead the home must be forwarded (plus one; 0 = not), now, the head.
local function answer(outcome, forward, head)
  return struct.pack('>BI8I8', outcome, forward, NOW) .. head
end
