-- lease/join: adds a replica to those that share the locks of a loop, and returns all of them.
-- @key members              the replicas that share the loop; the score is the time when a membership expires
-- @arg owner: bytes         the replica that joins, or renews its membership
-- @arg ttl_ms: u64          how long the membership is valid without another call
-- @ret lapse_ms: u64        milliseconds until another replica's membership expires, if not renewed; 0 = there is no other
-- @ret members: list<bytes> all replicas, sorted by name
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
