-- run/read: reads a run, whole or some fields of it, with the time of its node.
-- @key run                  the run's hash
-- @arg names: list<bytes>   the fields to read; none = all
-- @ret version: bytes       the version; empty = there is no such run
-- @ret place: bytes         position of its list entry
-- @ret now: u64             this node's time
-- @ret fields: list<bytes>  name, value; repeated for each field that exists, without version and position
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local own = redis.call('HMGET', KEYS[1], 'v', 'l')
local fields = {}
if not own[1] then return { '', '', now, fields } end
if #ARGV == 0 then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'v' and all[i] ~= 'l' then
      fields[#fields + 1] = all[i]
      fields[#fields + 1] = all[i + 1]
    end
  end
end
for i = 1, #ARGV, 1000 do
  local last = math.min(i + 999, #ARGV)
  local some = redis.call('HMGET', KEYS[1], unpack(ARGV, i, last))
  for n = 1, last - i + 1 do
    if some[n] then
      fields[#fields + 1] = ARGV[i + n - 1]
      fields[#fields + 1] = some[n]
    end
  end
end
return { own[1], own[2] or '', now, fields }
