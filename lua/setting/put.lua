-- setting/put: stores versioned settings, if they still stand as their writer saw them.
-- A version is never used twice, even if a failover forgets one: it is at least the time.
-- @key settings             the settings' hash
-- @arg writer: bytes        unique per call, so that a repeat is answered like the first time
-- @arg seen: bytes          the version that must stand: `any`, a number, or 0 for none yet
-- @arg fields: list<bytes>  name, value, and so on; an empty value removes the name
-- @ret outcome: u64         1 = stored, now or by the same call before; 0 = another version stands
-- @ret fields: list<bytes>  what stands: name, value, and so on
local stands = redis.call('HMGET', KEYS[1], 'version', 'writer')
local outcome = 1
if stands[2] ~= ARGV[1] then
  if ARGV[2] ~= 'any' and ARGV[2] ~= (stands[1] or '0') then
    outcome = 0
  else
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    local version = math.max(now, tonumber(stands[1] or 0) + 1)
    redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version), 'writer', ARGV[1],
      'updated_at', string.format('%.0f', now))
    for i = 3, #ARGV, 2 do
      if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
      else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
    end
  end
end
return { outcome, redis.call('HGETALL', KEYS[1]) }
