-- Reads the job's state, which is the field `s`. A job without run_at, start_by and deadline may be stored as one field
-- `j` until its first event. `j` holds the time of acceptance, the number of attempts and the time-out of each; from
-- LISTED on the position of its list entry; two bytes with the length of the spec; from SPEC on the spec; then the
-- payload. A value that is also in a field of its own is taken from that field, not from `j`.
local WHOLE, LISTED, SPEC = '>I8I2I4', 15, 25
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
