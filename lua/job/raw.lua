-- Where the job stands: its field `s`. One that nothing has happened to since it was accepted, and that has no moments
-- of its own, may be one field as a whole, `j`: when it was accepted, how many starts there may be and how long each
-- may take; from LISTED on its place in the listing; in two bytes how long its spec is, from SPEC on the spec, then its
-- payload. Fields of their own go before what `j` says.
local WHOLE, LISTED, SPEC = '>I8I2I4', 15, 25
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
