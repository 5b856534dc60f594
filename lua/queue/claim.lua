-- queue/claim: claims the first entries of a backlog for a few seconds, so that no two schedulers take the same ones.
-- The score of a claimed entry is the end of its claim minus CLAIM, which is far below the score of any entry that
-- waits. So entries with expired claims come first again, in their old order. A claim that ends more than SLACK later
-- than this one would was made while a clock ran ahead, and counts as expired. No entry is removed.
-- @key queue                one backlog queue
-- @arg n: u64               the most entries to claim
-- @arg hold: u64            length of the claim in microseconds
-- @ret members: list<bytes> the claimed entries: those with expired claims, then the oldest
local CLAIM = 8000000000000000
local SLACK = 60000000
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local n = tonumber(ARGV[1])
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - CLAIM), 'LIMIT', 0, n)
if #members < n then
  local latest = string.format('(%.0f', now + tonumber(ARGV[2]) + SLACK - CLAIM)
  local waiting = redis.call('ZRANGEBYSCORE', KEYS[1], latest, '+inf', 'LIMIT', 0, n - #members)
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
