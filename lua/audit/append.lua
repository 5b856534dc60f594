-- audit/append: adds entries to the end of the log, if the log still ends with the hash that the first entry is linked
-- to, and if it has none of the entries. Otherwise the script changes nothing, and returns the end of the log and the
-- ids that are known. The script stores each id as the name of a consumer of the stream's group `ids`. This group is a
-- set inside the one key, and one command checks and adds an id. An id is removed together with its entry. Entries
-- older than the first entry of a trimmed log count as known. The same call removes the entries before `keep_from`.
-- @key audit                the log
-- @arg tail: bytes          the hash that the first new entry is linked to
-- @arg keep_from: bytes     stream id of the oldest entry to keep; empty = keep all
-- @arg entries: list<bytes> id, milliseconds, number, body, hash; repeated for each entry
-- @ret added: u64           1 if added, 0 if nothing was changed
-- @ret number: u64          number of the last entry
-- @ret hash: bytes          hash of the last entry
-- @ret known: list<bytes>   ids of new entries that the log already has, or had before it was trimmed
local function field(entry, name)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == name then return entry[2][i + 1] end
  end
  return ''
end
local function has_ids()
  if redis.call('EXISTS', KEYS[1]) == 0 then return false end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if field({ '', group }, 'name') == 'ids' then return true end
  end
  return false
end

local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local number, hash, begins = '0', string.rep('0', 64), 0
if first then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  number, hash = field(last, 'n'), field(last, 'hash')
  if not tonumber(number) then number = '0' end
  if field(first, 'n') ~= '1' then begins = tonumber(string.match(first[1], '^%d+')) end
end
if hash ~= ARGV[1] then return { '0', number, hash, {} } end

if not has_ids() then redis.call('XGROUP', 'CREATE', KEYS[1], 'ids', '0', 'MKSTREAM') end
local known, added = {}, {}
for i = 3, #ARGV, 5 do
  if tonumber(ARGV[i + 1]) < begins or redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], 'ids', ARGV[i]) == 0 then
    known[#known + 1] = ARGV[i]
  else
    added[#added + 1] = ARGV[i]
  end
end
if #known > 0 then
  for _, id in ipairs(added) do redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'ids', id) end
  return { '0', number, hash, known }
end
for i = 3, #ARGV, 5 do
  redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], 'n', ARGV[i + 2], 'prev', hash, 'hash', ARGV[i + 4], 'body', ARGV[i + 3])
  number, hash = ARGV[i + 2], ARGV[i + 4]
end
if ARGV[2] ~= '' then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '(' .. ARGV[2])) do
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'ids', field(entry, 'id'))
  end
  redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2])
end
return { '1', number, hash, {} }
