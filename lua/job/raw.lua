-- Where the job stands: its field `s`. One that nothing has happened to since it was accepted may be one field as a
-- whole, `j`, which begins with what `s` would be: FRESH bytes, then its place in the listing, then as many bytes of
-- spec as the next two say, then its payload. Fields of their own go before what `j` says.
local FRESH, LISTED, SPEC = 93, 94, 104
local raw = redis.call('HGET', KEYS[1], 's')
if not raw then
  raw = redis.call('HGET', KEYS[1], 'j')
  if raw then raw = string.sub(raw, 1, FRESH) end
end
