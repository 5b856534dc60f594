-- The packed field `s` of a job's hash: the head, which is the job's current state, then its bounded history.
-- One field that is read and written as a unit costs half the CPU of separate fields.
--   state version attempt max_attempts lost released last_event ended_by timeout_ms
--   fence since due lease_until deadline start_by started created start_id worker
-- The state decides what `due` is: run_at, the approval's expiry, or the end of the attempt's time-out.
local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
-- After the head: the number of history lines, then the lines. The first line of every history, the creation, is not
-- stored. A line has the event, the new state, the time, the attempt, and a note of at most 240 bytes.
local TOP = '>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2'
local LINE = '>BBBI8I2'
-- Parts of the head and their positions: the fields up to the fence, the times, the worker's name.
local STANDING = '>BI4I2I2I2BBBI4I8'
local MOMENTS = '>I8I8I8I8I8I8I8'
local SINCE, DEADLINE, CREATED, START_ID, NAME = 27, 51, 75, 83, 91
-- An answer before the head: the outcome; 0 if the home can stay, or else one more than the time from now to which the
-- caller must forward it; now. A record can be an answer too: it begins with its state, which is less than SAID.
local ANSWER = '>BI8I8'
local SAID = 128
