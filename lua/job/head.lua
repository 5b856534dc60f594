-- The packed field `s` of a job's hash: where the job stands, then its bounded history.
-- One field, read and written as one: half the CPU of separate fields.
--   state version attempt max_attempts lost released last_event ended_by timeout_ms
--   fence since due lease_until deadline start_by started created start_id worker
-- `due` is run_at, the approval's expiry, or the attempt's time-out, by state.
local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
-- Behind the head: how many lines of history follow the one that is not written, of the moment it was
-- created. A line is what happened, where it led, when, which attempt, and a note of at most 240 bytes.
local TOP = '>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2'
local LINE = '>BBBI8I2'
-- Its parts, and where they begin: up to the fence, the moments, the name.
local STANDING = '>BI4I2I2I2BBBI4I8'
local MOMENTS = '>I8I8I8I8I8I8I8'
local SINCE, DEADLINE, CREATED, START_ID, NAME = 27, 51, 75, 83, 91
-- What a caller hears before the head: outcome, whether and how far ahead the home must be forwarded
-- (plus one; 0 = not), now. A record begins with its state, which is less than SAID: so it can be the whole answer.
local ANSWER = '>BI8I8'
local SAID = 128
