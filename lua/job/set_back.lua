-- job/set_back: mends the moments that a clock left in a job's record while it ran ahead. A lease that ends later than
-- any lease can ends after as long as it was granted for, counted from now; a wait that was counted from a moment in
-- the future is counted from now. The state and the version stay.
-- @key job                  the job's hash
-- @arg longest: u64         the longest lease, in microseconds
-- @arg slack: u64           how far a moment may be ahead, in microseconds
-- @arg delay: u64           microseconds that the submit asked to wait; 0 = none, or until a moment of its own
-- @ret changed: u64         1 or 0
-- @include job/table
-- @include job/head
local raw = redis.call('HGET', KEYS[1], 's')
-- A record without `s` has no moments, see job/raw.
if not raw then return 0 end
local state, last = string.byte(raw, 1), string.byte(raw, 13)
local since, due, lease = struct.unpack(MOMENTS, raw, SINCE)
local longest, latest, delay = tonumber(ARGV[1]), NOW + tonumber(ARGV[2]), tonumber(ARGV[3])
if state == RUNNING then
  if lease <= latest + longest then return 0 end
  lease = NOW + math.min(math.max(lease - since, 0), longest)
elseif state == RETRYING or (state == SCHEDULED and last == RELEASE) then
  if since <= latest then return 0 end
  since, due = NOW, NOW + math.max(due - since, 0)
elseif (state == PENDING or state == SCHEDULED) and delay > 0 then
  if due <= latest + delay then return 0 end
  due = NOW + delay
else
  return 0
end
redis.call('HSET', KEYS[1], 's', string.sub(raw, 1, SINCE - 1) .. struct.pack('>I8I8I8', since, due, lease)
  .. string.sub(raw, DEADLINE))
return 1
