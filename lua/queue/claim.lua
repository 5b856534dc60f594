-- queue/claim: takes the head of a backlog for a few seconds, so that two schedulers do not take the same.
-- A claimed entry's score is its claim's end less CLAIM, far below any age: a claim that lapsed
-- comes first again, in its old place. Nothing is popped.
-- @key queue                one backlog queue
-- @arg n: u64               at most so many
-- @arg hold: u64            microseconds
-- @ret members: list<bytes> oldest first
local CLAIM = 8000000000000000
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local n = tonumber(ARGV[1])
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - CLAIM), 'LIMIT', 0, n)
if #members < n then
  local waiting = redis.call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'LIMIT', 0, n - #members)
  for i = 1, #waiting do members[#members + 1] = waiting[i] end
end
if #members == 0 then return members end
local score = string.format('%.0f', now + tonumber(ARGV[2]) - CLAIM)
local entries = {}
for i = 1, #members do
  entries[2 * i - 1] = score
  entries[2 * i] = members[i]
end
redis.call('ZADD', KEYS[1], unpack(entries))
return members
