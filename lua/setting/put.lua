-- setting/put: stores versioned settings, if their version is still the one that the writer saw.
-- No version is used twice, even if a failover loses one: a version is at least the current time.
-- @key settings             the settings' hash
-- @arg writer: bytes        unique per call, so that a repeated call gets the same answer as the first
-- @arg seen: bytes          the version that must be stored now: `any`, a number, or 0 = no version yet
-- @arg fields: list<bytes>  name, value; repeated for each field. An empty value removes the name
-- @ret outcome: u64         1 = stored, by this call or by an earlier try of it; 0 = the stored version is another one
-- @ret fields: list<bytes>  the settings as stored: name, value; repeated for each field
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
