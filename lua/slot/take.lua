-- slot/take: gives a job a slot of a concurrency limit. If all slots are taken and `turn` is negative, the job waits.
-- Each limit is one sorted set. The score of a job that holds a slot is the time when a scheduler should check whether
-- the job still needs it: the job's record decides that, and time alone never frees a slot. The score of a job that
-- waits is negative; the lowest is first.
-- @key slots                the limit's set
-- @arg member: bytes        job and version at admission
-- @arg max: u64             number of slots
-- @arg look: u64            microseconds from now until the first check of the slot
-- @arg turn: i64            negative: score to wait with, the lowest is first; 0 = the job does not wait
-- @ret outcome: u64         1 = admitted, 2 = was admitted before, 3 = all slots are taken
-- @ret holders: list<bytes> 2: this member and its score; 3: members and scores of up to 64 jobs that hold slots
-- @ret now: u64             this node's time
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
