-- slot/take: admits a job under a concurrency limit, or notes that it waits, if it has a turn.
-- One sorted set per limit. Who holds a slot has the moment when somebody should look whether it is
-- still held (a slot is freed by what its job's record says, never by time alone); who waits has a
-- negative score, first come first.
-- @key slots                the limit's set
-- @arg member: bytes        job and version at admission
-- @arg max: u64             how many may hold a slot
-- @arg look: u64            microseconds from now
-- @arg turn: i64            negative; the lowest is first in line. 0 = nobody waits here
-- @ret outcome: u64         1 admitted, 2 was admitted before, 3 all slots are taken
-- @ret holders: list<bytes> member and score of who holds it, or of up to 64 that hold all
-- @ret now: u64
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stamp = string.format('%.0f', now)
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) >= 0 then return { 2, { ARGV[1], score }, stamp } end
if redis.call('ZCOUNT', KEYS[1], 0, '+inf') < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
  return { 1, {}, stamp }
end
if not score and tonumber(ARGV[4]) < 0 then redis.call('ZADD', KEYS[1], ARGV[4], ARGV[1]) end
return { 3, redis.call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 64), stamp }
