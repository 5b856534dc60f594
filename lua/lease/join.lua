-- lease/join: notes that a replica shares the locks of a loop, and tells who does.
-- @key members              the replicas that share the loop, scored by when each lapses
-- @arg owner: bytes         who joins, or joins again
-- @arg ttl_ms: u64          how long that holds without joining again
-- @ret lapse_ms: u64        when the first of the others lapses unless it joins again; 0 = there is none
-- @ret members: list<bytes> all of them, by name
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local entries = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local lapse, members = 0, {}
for i = 1, #entries, 2 do
  members[#members + 1] = entries[i]
  if entries[i] ~= ARGV[1] and lapse == 0 then lapse = tonumber(entries[i + 1]) - now end
end
table.sort(members)
return { string.format('%.0f', lapse), members }
