//! The typed call of every script in `lua/`.
//!
//! @generated from the headers in `lua/` by muster-codegen. Do not edit.

/// Every script, for loading and for the tests that go over all of them.
pub(crate) const ALL: &[&crate::router::ScriptSource] = &[
    &api_key::SWAP,
    &audit::APPEND,
    &definition::HIDE,
    &definition::PUT,
    &format::RAISE,
    &home::DROP_ORPHAN,
    &home::DUE,
    &home::FORWARD,
    &home::PUT_BACK,
    &home::RESCORE,
    &home::SET,
    &job::APPLY,
    &job::DELETE,
    &job::EXTEND,
    &job::FORESTALL,
    &job::MARK_RETRIED,
    &job::RELIST,
    &job::SET_BACK,
    &job::SUBMIT,
    &lease::JOIN,
    &lease::RELEASE,
    &lease::RENEW,
    &lease::TAKE,
    &limit::GIVE,
    &limit::TAKE,
    &line::DROP,
    &line::NOTE,
    &listing::DROP,
    &listing::PUT_BACK,
    &note::PUT,
    &operation::CANCEL,
    &operation::CLAIM,
    &operation::CREATE,
    &operation::NOTE,
    &queue::CLAIM,
    &reread::MARK,
    &run::CREATE,
    &run::DELETE,
    &run::READ,
    &run::SAVE,
    &setting::PUT,
    &slot::FREE,
    &slot::KEEP,
    &slot::TAKE,
    &timeline::ADD,
];

/// Scripts on a api_key.
pub(crate) mod api_key {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `api_key/swap`.
    pub(crate) static SWAP: ScriptSource = ScriptSource::new(
        "api_key/swap",
        r#"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"#,
    );

    /// replaces an API key's stored text, if it is still as the caller read it. A deleted key stays deleted.
    pub(crate) struct Swap {
        /// api_key
        pub(crate) key: Key,
        /// the text as the caller read it
        pub(crate) read: Vec<u8>,
        /// the new text
        pub(crate) text: Vec<u8>,
    }

    /// What `api_key/swap` answers.
    pub(crate) struct SwapReply {
        /// 1 if replaced, otherwise 0
        pub(crate) swapped: u64,
    }

    impl Script for Swap {
        type Reply = SwapReply;

        fn into_command(self) -> Command {
            Command::script(&SWAP, self.key.as_bytes())
                .arg(self.read)
                .arg(self.text)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(SwapReply { swapped: reply.u64()? })
        }
    }
}

/// Scripts on a audit.
pub(crate) mod audit {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `audit/append`.
    pub(crate) static APPEND: ScriptSource = ScriptSource::new(
        "audit/append",
        r#"local function field(entry, name)
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
"#,
    );

    /// adds entries to the end of the log, if the log still ends with the hash that the first entry is linked
    /// to, and if it has none of the entries. Otherwise the script changes nothing, and returns the end of the log and the
    /// ids that are known. The script stores each id as the name of a consumer of the stream's group `ids`. This group is a
    /// set inside the one key, and one command checks and adds an id. An id is removed together with its entry. Entries
    /// older than the first entry of a trimmed log count as known. The same call removes the entries before `keep_from`.
    pub(crate) struct Append {
        /// audit
        pub(crate) key: Key,
        /// the hash that the first new entry is linked to
        pub(crate) tail: Vec<u8>,
        /// stream id of the oldest entry to keep; empty = keep all
        pub(crate) keep_from: Vec<u8>,
        /// id, milliseconds, number, body, hash; repeated for each entry
        pub(crate) entries: Vec<Vec<u8>>,
    }

    /// What `audit/append` answers.
    pub(crate) struct AppendReply {
        /// 1 if added, 0 if nothing was changed
        pub(crate) added: u64,
        /// number of the last entry
        pub(crate) number: u64,
        /// hash of the last entry
        pub(crate) hash: Vec<u8>,
        /// ids of new entries that the log already has, or had before it was trimmed
        pub(crate) known: Vec<Vec<u8>>,
    }

    impl Script for Append {
        type Reply = AppendReply;

        fn into_command(self) -> Command {
            Command::script(&APPEND, self.key.as_bytes())
                .arg(self.tail)
                .arg(self.keep_from)
                .arg(&self.entries)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 4)?;
            Ok(AppendReply { added: reply.u64()?, number: reply.u64()?, hash: reply.bytes()?, known: reply.list()? })
        }
    }
}

/// Scripts on a definition.
pub(crate) mod definition {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `definition/hide`.
    pub(crate) static HIDE: ScriptSource = ScriptSource::new(
        "definition/hide",
        r#"local stands = redis.call('HMGET', KEYS[1], 'n', 'x')
if not stands[1] or stands[2] then return { 2, 0 } end
local shown = tonumber(stands[1])
if ARGV[1] ~= 'any' and tonumber(ARGV[1]) ~= shown then return { 0, shown } end
redis.call('HSET', KEYS[1], 'x', '1')
return { 1, shown }
"#,
    );

    /// hides a definition. Its versions stay, for the runs that have begun with them.
    pub(crate) struct Hide {
        /// definition
        pub(crate) key: Key,
        /// the version that must be shown now: `any` or a number
        pub(crate) seen: Vec<u8>,
    }

    /// What `definition/hide` answers.
    pub(crate) struct HideReply {
        /// 0 = another version is shown, 1 = hidden by this call, 2 = nothing was shown
        pub(crate) outcome: u64,
        /// the version that was shown; 0 = none
        pub(crate) version: u64,
    }

    impl Script for Hide {
        type Reply = HideReply;

        fn into_command(self) -> Command {
            Command::script(&HIDE, self.key.as_bytes())
                .arg(self.seen)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(HideReply { outcome: reply.u64()?, version: reply.u64()? })
        }
    }

    /// The source of `definition/put`.
    pub(crate) static PUT: ScriptSource = ScriptSource::new(
        "definition/put",
        r#"local stands = redis.call('HMGET', KEYS[1], 'n', 'h', 'w', 'x')
local latest = tonumber(stands[1] or '0')
local shown = stands[4] and 0 or latest
if stands[3] == ARGV[1] then return { 1, shown } end
if ARGV[2] ~= 'any' and tonumber(ARGV[2]) ~= shown then return { 0, shown } end
if shown > 0 and stands[2] == ARGV[3] then return { 2, shown } end
local t = redis.call('TIME')
local version = string.format('%.0f', latest + 1)
redis.call('HSET', KEYS[1], 'n', version, 'h', ARGV[3], 'w', ARGV[1], version, ARGV[4],
  't' .. version, string.format('%.0f', t[1] * 1000000 + t[2]))
redis.call('HDEL', KEYS[1], 'x')
return { 1, latest + 1 }
"#,
    );

    /// stores a definition under the next version, unless it is equal to the latest one. A version is never
    /// used twice, also after the definition was hidden.
    pub(crate) struct Put {
        /// definition
        pub(crate) key: Key,
        /// unique per call, so that a repeated call gets the same answer as the first
        pub(crate) writer: Vec<u8>,
        /// the version that must be shown now: `any`, a number, or 0 = none
        pub(crate) seen: Vec<u8>,
        /// hash of the content
        pub(crate) hash: Vec<u8>,
        /// the content
        pub(crate) text: Vec<u8>,
    }

    /// What `definition/put` answers.
    pub(crate) struct PutReply {
        /// 0 = another version is shown, 1 = stored, by this call or an earlier try of it, 2 = no change
        pub(crate) outcome: u64,
        /// the version that is shown now; 0 = none
        pub(crate) version: u64,
    }

    impl Script for Put {
        type Reply = PutReply;

        fn into_command(self) -> Command {
            Command::script(&PUT, self.key.as_bytes())
                .arg(self.writer)
                .arg(self.seen)
                .arg(self.hash)
                .arg(self.text)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(PutReply { outcome: reply.u64()?, version: reply.u64()? })
        }
    }
}

/// Scripts on a format.
pub(crate) mod format {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `format/raise`.
    pub(crate) static RAISE: ScriptSource = ScriptSource::new(
        "format/raise",
        r#"local found = redis.call('GET', KEYS[1]) or ''
if found == '' or (tonumber(found) or math.huge) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return found
"#,
    );

    /// stores the number of the data format, unless the stored one is the same or newer.
    pub(crate) struct Raise {
        /// format
        pub(crate) key: Key,
        /// the newest format that the caller knows
        pub(crate) known: u64,
    }

    /// What `format/raise` answers.
    pub(crate) struct RaiseReply {
        /// the number before this call; empty = none
        pub(crate) found: Vec<u8>,
    }

    impl Script for Raise {
        type Reply = RaiseReply;

        fn into_command(self) -> Command {
            Command::script(&RAISE, self.key.as_bytes())
                .arg(self.known)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(RaiseReply { found: reply.bytes()? })
        }
    }
}

/// Scripts on a home.
pub(crate) mod home {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `home/drop_orphan`.
    pub(crate) static DROP_ORPHAN: ScriptSource = ScriptSource::new(
        "home/drop_orphan",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stands = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1)
if stands ~= tonumber(ARGV[2]) or stands > now then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
"#,
    );

    /// removes the home of a job without a record, if it is due and its score is still as the caller read it.
    pub(crate) struct DropOrphan {
        /// homes
        pub(crate) key: Key,
        /// the job's id
        pub(crate) job: Vec<u8>,
        /// score as the caller read it
        pub(crate) read: u64,
    }

    /// What `home/drop_orphan` answers.
    pub(crate) struct DropOrphanReply {
        /// 1 if removed, otherwise 0
        pub(crate) dropped: u64,
    }

    impl Script for DropOrphan {
        type Reply = DropOrphanReply;

        fn into_command(self) -> Command {
            Command::script(&DROP_ORPHAN, self.key.as_bytes())
                .arg(self.job)
                .arg(self.read)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(DropOrphanReply { dropped: reply.u64()? })
        }
    }

    /// The source of `home/due`.
    pub(crate) static DUE: ScriptSource = ScriptSource::new(
        "home/due",
        r#"local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local next = '0'
if #entries < 2 * tonumber(ARGV[1]) then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if ahead[2] then next = string.format('%.0f', math.min(tonumber(ahead[2]), 9007199254740991)) end
end
return { now, next, entries }
"#,
    );

    /// lists the homes that are due, earliest first, and the time of the next one. Changes nothing.
    pub(crate) struct Due {
        /// homes
        pub(crate) key: Key,
        /// the most homes to return
        pub(crate) limit: u64,
    }

    /// What `home/due` answers.
    pub(crate) struct DueReply {
        /// this node's time
        pub(crate) now: u64,
        /// when the next home is due; 0 = there is none, or more than `limit` may be due now
        pub(crate) next: u64,
        /// id, score; repeated for each home
        pub(crate) entries: Vec<Vec<u8>>,
    }

    impl Script for Due {
        type Reply = DueReply;

        fn into_command(self) -> Command {
            Command::script(&DUE, self.key.as_bytes())
                .arg(self.limit)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 3)?;
            Ok(DueReply { now: reply.u64()?, next: reply.u64()?, entries: reply.list()? })
        }
    }

    /// The source of `home/forward`.
    pub(crate) static FORWARD: ScriptSource = ScriptSource::new(
        "home/forward",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i = 1, #ARGV, 2 do
  local score = now + tonumber(ARGV[i + 1])
  local stands = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if stands then score = math.min(tonumber(stands) - 1, score) end
  redis.call('ZADD', KEYS[1], string.format('%.0f', score), ARGV[i])
end
return string.format('%.0f', now)
"#,
    );

    /// moves homes to an earlier time: min(score - 1, now + after); adds a home that is missing. The score
    /// always changes, so a reconciler that has read the old score fails to re-score the home, and checks the job again.
    pub(crate) struct Forward {
        /// homes
        pub(crate) key: Key,
        /// id, microseconds from now; repeated for each home
        pub(crate) pairs: Vec<Vec<u8>>,
    }

    /// What `home/forward` answers.
    pub(crate) struct ForwardReply {
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Forward {
        type Reply = ForwardReply;

        fn into_command(self) -> Command {
            Command::script(&FORWARD, self.key.as_bytes())
                .arg(&self.pairs)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ForwardReply { now: reply.u64()? })
        }
    }

    /// The source of `home/put_back`.
    pub(crate) static PUT_BACK: ScriptSource = ScriptSource::new(
        "home/put_back",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local added = 0
for i = 1, #ARGV, 2 do
  local score = string.format('%.0f', now + tonumber(ARGV[i + 1]))
  added = added + redis.call('ZADD', KEYS[1], 'NX', score, ARGV[i])
end
return added
"#,
    );

    /// adds homes for jobs that have none. An existing home does not change.
    pub(crate) struct PutBack {
        /// homes
        pub(crate) key: Key,
        /// id, microseconds from now until the home is due; repeated for each job
        pub(crate) pairs: Vec<Vec<u8>>,
    }

    /// What `home/put_back` answers.
    pub(crate) struct PutBackReply {
        /// number of homes added
        pub(crate) added: u64,
    }

    impl Script for PutBack {
        type Reply = PutBackReply;

        fn into_command(self) -> Command {
            Command::script(&PUT_BACK, self.key.as_bytes())
                .arg(&self.pairs)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(PutBackReply { added: reply.u64()? })
        }
    }

    /// The source of `home/rescore`.
    pub(crate) static RESCORE: ScriptSource = ScriptSource::new(
        "home/rescore",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local changed = 0
for i = 1, #ARGV, 3 do
  local stands = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if stands and tonumber(stands) == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[i + 2])), ARGV[i])
    changed = changed + 1
  end
end
return changed
"#,
    );

    /// sets when homes are due next. A home changes only if its score is still the one that the caller read.
    pub(crate) struct Rescore {
        /// homes
        pub(crate) key: Key,
        /// id, score as read, microseconds from now; repeated for each home
        pub(crate) triples: Vec<Vec<u8>>,
    }

    /// What `home/rescore` answers.
    pub(crate) struct RescoreReply {
        /// number of homes changed
        pub(crate) changed: u64,
    }

    impl Script for Rescore {
        type Reply = RescoreReply;

        fn into_command(self) -> Command {
            Command::script(&RESCORE, self.key.as_bytes())
                .arg(&self.triples)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(RescoreReply { changed: reply.u64()? })
        }
    }

    /// The source of `home/set`.
    pub(crate) static SET: ScriptSource = ScriptSource::new(
        "home/set",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local score = string.format('%.0f', now + tonumber(ARGV[1]))
local entries = {}
for i = 2, #ARGV do
  entries[#entries + 1] = score
  entries[#entries + 1] = ARGV[i]
end
redis.call('ZADD', KEYS[1], unpack(entries))
return string.format('%.0f', now)
"#,
    );

    /// sets the homes of jobs to one time from now, and replaces existing homes.
    pub(crate) struct Set {
        /// homes
        pub(crate) key: Key,
        /// microseconds from now until the homes are due
        pub(crate) after: u64,
        /// ids of the jobs
        pub(crate) jobs: Vec<Vec<u8>>,
    }

    /// What `home/set` answers.
    pub(crate) struct SetReply {
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Set {
        type Reply = SetReply;

        fn into_command(self) -> Command {
            Command::script(&SET, self.key.as_bytes())
                .arg(self.after)
                .arg(&self.jobs)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(SetReply { now: reply.u64()? })
        }
    }
}

/// Scripts on a job.
pub(crate) mod job {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `job/apply`.
    pub(crate) static APPLY: ScriptSource = ScriptSource::new(
        "job/apply",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local event, seen, wait, asked_lease, asked_id = struct.unpack('>BI8I8I8c8', ARGV[1])
local note = ARGV[5] or ''
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
if whole and event == 10 and seen == 1 and note == '' and asked_lease >= 30000000 then
  local accepted, most, limit = struct.unpack('>I8I2I4', whole)
  if accepted + 30000000 > NOW and (limit == 0 or limit * 1000 >= 30000000) then
    local worker, due = ARGV[2] or '', 0
    if limit > 0 then due = NOW + limit * 1000 end
    local started = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2c0BBBI8I2c0', 7, 2, 1, most, 0, 0, event, 0, limit, NOW,
      NOW, due, NOW + asked_lease, 0, 0, NOW, accepted, asked_id, #worker, worker, 1, '',
      12 + #worker, event, 7, NOW, 1, worker)
    redis.call('HSET', KEYS[1], 's', started)
    return started
  end
end
if whole then
  local accepted, most, limit = struct.unpack('>I8I2I4', whole)
  raw = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', 1, 1, 0, most, 0, 0, 0, 0, limit,
    0, accepted, 0, 0, 0, 0, 0, accepted, '\0\0\0\0\0\0\0\0', 0, '', '\0\0')
end
if not raw then return struct.pack('>BI8I8', 128 + 5, 0, NOW) end
local state, version, attempt, max, lost, released, last, ended_by, timeout, fence = struct.unpack('>BI4I2I2I2BBBI4I8', raw)
local kind = string.byte('\1\1\1\1\1\1\1\1\1\1\1\2\2\2\2\2\1\1\1\1\1\1\3', event)
local to = string.byte('\2\0\5\6\0\1\4\0\12\7\9\0\0\0\0\0\0\0\0\0\10\13\11\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\0\11\0\0\0\0\0\0\0\1\12\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\0\5\6\0\0\0\0\12\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\0\0\0\6\1\0\0\0\7\9\0\0\0\0\0\0\0\0\0\10\13\11\0\0\0\0\0\0\0\0\0\0\0\8\3\9\2\14\3\9\14\3\10\0\11\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', (state - 1) * 23 + event)
local named = 91 + string.byte(raw, 91)
local high, count = string.byte(raw, named + 1, named + 2)
local short = high == 0 and count < 8
local packed, top, forward
if short and kind == 2 and state == 7 and fence == seen and to >= 8 then
  packed = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8c0I2c0BBBI8I2c0', to, version + 1, attempt, max, lost, released, event, event, timeout, fence, NOW, 0, 0,
    string.sub(raw, 51, named), count + 1, string.sub(raw, named + 3), 12 + #note, event, to, NOW, attempt, note)
else
  local since, due, lease, deadline, start_by, started, created = struct.unpack('>I8I8I8I8I8I8I8', raw, 27)
  if short and event == 10 and to == 7 and version == seen and started == 0 and note == ''
    and due <= NOW and deadline == 0 and start_by == 0 and since + 30000000 > NOW
    and asked_lease >= 30000000 and (timeout == 0 or timeout * 1000 >= 30000000) then
    local worker = ARGV[2] or ''
    attempt = attempt + 1
    if timeout > 0 then due = NOW + timeout * 1000 else due = 0 end
    packed = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2c0BBBI8I2c0', to, version + 1, attempt, max, lost, released, event, 0, timeout, math.max(fence + 1, NOW),
      NOW, due, NOW + asked_lease, 0, 0, NOW, created, asked_id, #worker, worker, count + 1, string.sub(raw, named + 3),
      12 + #worker, event, to, NOW, attempt, worker)
  else
    count = high * 256 + count
    local start_id, worker = string.sub(raw, 83, 91 - 1), string.sub(raw, 91 + 1, named)
    local refusal
    if kind == 1 then
      if version == seen + 1 and last == event and (event ~= 10 or start_id == asked_id) then
        refusal = 2
      elseif version ~= seen then
        refusal = 3
      end
    elseif kind == 2 then
      if fence ~= seen or fence == 0 then
        refusal = 3
      elseif state ~= 7 then
        if ended_by == event then refusal = 2 else refusal = 4 end
      end
    elseif state == 11 then
      refusal = 2
    end
    if not refusal and to == 0 then refusal = 4 end
    local moment = string.byte('\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\2\2\3\4\5\0', event)
    if not refusal then
      local overdue = deadline > 0 and deadline <= NOW
      local unstarted = started == 0 and start_by > 0 and start_by <= NOW
      local come = true
      if moment == 1 then come = due <= NOW
      elseif moment == 2 then come = lease <= NOW
      elseif moment == 3 then come = due > 0 and due <= NOW
      elseif moment == 4 then come = overdue or (state == 7 and due > 0 and due <= NOW)
      elseif moment == 5 then come = overdue or unstarted or (state == 4 and due <= NOW)
      elseif event == 1 then come = due > NOW
      elseif event == 4 or event == 3 then come = state ~= 1 or due <= NOW
      elseif event == 10 then come = not overdue and not unstarted and (state ~= 1 or due <= NOW) end
      if not come then refusal = 6 end
    end
    if refusal then return struct.pack('>BI8I8', 128 + refusal, 0, NOW) .. string.sub(raw, 1, named) end
local function look(state, fresh, since, due, lease, deadline, start_by, started)
  local at
  if state == 1 then
    if fresh or NOW - since < 30000000 then at = since + 30000000 else at = NOW + 300000000 end
  elseif state == 2 or state == 3 or state == 4 then at = due
  elseif state == 5 then
    if fresh then at = NOW + 900000000 else at = NOW + 1350000000 end
  elseif state == 6 then at = NOW + 30000000
  elseif state == 7 then
    at = lease
    if due > 0 and due < at then at = due end
  else at = NOW end
  if deadline > 0 and deadline < at then at = deadline end
  if started == 0 and start_by > 0 and start_by < at then at = start_by end
  return at
end
    local lives = to < 8
    local before = lives and look(state, false, since, due, lease, deadline, start_by, started)
    if state == 7 then
      ended_by = event
      if event ~= 23 and event ~= 21 and event ~= 20 then lease = 0 end
    end
    if event == 10 then
      if started > 0 then redis.call('HDEL', KEYS[1], 'g') end
      attempt = attempt + 1
      fence = math.max(fence + 1, NOW)
      lease = NOW + asked_lease
      started = NOW
      start_id, worker = asked_id, ARGV[2] or ''
      if note == '' then note = worker end
      ended_by = 0
      if timeout > 0 then due = NOW + timeout * 1000 else due = 0 end
    elseif to == 2 or to == 3 or to == 4 then
      if event ~= 1 then due = NOW + wait end
    else
      due = 0
    end
    if event == 15 then
      attempt = attempt - 1
      released = released + 1
    elseif moment == 2 then
      lost = lost + 1
    end
    forward = 0
    if lives then
      local next = look(to, true, NOW, due, lease, deadline, start_by, started)
      if next < before then forward = math.max(next - NOW, 0) + 1 end
    end
    local first = named + 3
    if count < 63 then count = count + 1 else first = first + 1 + string.byte(raw, first) end
    top = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0I2', to, version + 1, attempt, max, lost, released, event, ended_by, timeout, fence, NOW, due,
      lease, deadline, start_by, started, created, start_id, #worker, worker, count)
    packed = top .. string.sub(raw, first) .. struct.pack('>BBBI8I2', 12 + #note, event, to, NOW, attempt) .. note
  end
end
local result, error = ARGV[3] or '', ARGV[4] or ''
for try = 1, 2 do
  local wrote
  if result == '' and error == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed)
  elseif error == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'r', result)
  elseif result == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'e', error)
  else
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'r', result, 'e', error)
  end
  if type(wrote) ~= 'table' then break end
  if try == 2 or to < 8 or not string.find(wrote.err, 'OOM', 1, true) then return wrote end
redis.call('PERSIST', KEYS[1])
end
if event == 4 then
  if asked_lease > 0 then
    redis.call('HSET', KEYS[1], 'c', string.format('%.0f', version) .. (asked_lease > 1 and 't' or ''))
  elseif version > 2 then
    redis.call('HDEL', KEYS[1], 'c')
  end
end
if not top then return packed end
return struct.pack('>BI8I8', 128 + 1, forward, NOW) .. top
"#,
    );

    /// applies one event of the state table to a job, if the job is still as the caller saw it.
    /// This is the only script that changes a job's state. If the same holder repeats a call, the script changes nothing and
    /// answers `already` with the same values; the caller then repeats the effects.
    /// The reply has no head if the job is missing.
    pub(crate) struct Apply {
        /// job
        pub(crate) key: Key,
        /// the event and its numbers
        pub(crate) ask: ApplyAsk,
        /// name of the worker, for a start
        pub(crate) worker: Vec<u8>,
        /// result to store with the event
        pub(crate) result: Vec<u8>,
        /// error to store with the event
        pub(crate) error: Vec<u8>,
        /// text for the history, at most 240 bytes; default for a start: the worker
        pub(crate) note: Vec<u8>,
    }

    /// What `job/apply` answers.
    pub(crate) struct ApplyReply {
        /// the new record, if applied and the home need not move; else SAID + outcome, forward, now, head
        pub(crate) reply: Vec<u8>,
    }

    impl Script for Apply {
        type Reply = ApplyReply;

        fn into_command(self) -> Command {
            Command::script(&APPLY, self.key.as_bytes())
                .arg(self.ask.to_bytes())
                .optional(&[self.worker, self.result, self.error, self.note])
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ApplyReply { reply: reply.bytes()? })
        }
    }

    /// `ask` of `job/apply`.
    pub(crate) struct ApplyAsk {
        /// code of the event
        pub(crate) event: u8,
        /// the version (offers, checks) or the fence (workers) that the caller has read
        pub(crate) seen: u64,
        /// microseconds until run_at or the approval's expiry, for events that set one of them
        pub(crate) wait: u64,
        /// microseconds, for a start; for a dispatch: 0 = no slot, 1 = a slot, 2 = a place, with or without a slot
        pub(crate) lease: u64,
        /// id of the start request, for a start
        pub(crate) start_id: [u8; 8],
    }

    impl ApplyAsk {
        fn to_bytes(&self) -> Vec<u8> {
            let parts: &[&[u8]] = &[
                &self.event.to_be_bytes(),
                &self.seen.to_be_bytes(),
                &self.wait.to_be_bytes(),
                &self.lease.to_be_bytes(),
                &self.start_id,
            ];
            parts.concat()
        }
    }

    /// The source of `job/delete`.
    pub(crate) static DELETE: ScriptSource = ScriptSource::new(
        "job/delete",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
if whole then return 2 end
if not raw or redis.call('HEXISTS', KEYS[1], 'x') == 1 then return 3 end
if string.byte(raw, 1) < 8 then return 2 end
local ended, kept = struct.unpack('>I8', raw, 27), tonumber(ARGV[3])
if kept > 0 and ended + kept > NOW then return 4 end
local left = ended + tonumber(ARGV[2]) - NOW
if redis.call('HEXISTS', KEYS[1], 'k') == 1 then
  left = math.max(left, struct.unpack('>I8', raw, 75) + tonumber(ARGV[1]) - NOW)
end
if left > 0 then
  whole = redis.call('HGET', KEYS[1], 'j')
  if whole then
    local spec = string.sub(whole, 25, 25 - 1 + struct.unpack('>I2', whole, 25 - 2))
    redis.call('HSETNX', KEYS[1], 'd', spec)
    redis.call('HSETNX', KEYS[1], 'l', string.sub(whole, 15, 25 - 3))
  end
  redis.call('HDEL', KEYS[1], 'j', 'p', 'r', 'e', 'g')
  redis.call('HSET', KEYS[1], 'x', '1')
  redis.call('PEXPIRE', KEYS[1], math.ceil(left / 1000))
else
  redis.call('DEL', KEYS[1])
end
return 1
"#,
    );

    /// removes the record of an ended job. A stub without payload and result stays while the job's idempotency
    /// key is taken, and while the loop `reread` may read its submit again: without the stub, that would create the job
    /// again.
    pub(crate) struct Delete {
        /// job
        pub(crate) key: Key,
        /// microseconds after the submit for which its idempotency key stays taken
        pub(crate) keep_key: u64,
        /// microseconds after its end for which a stub stays, with or without a key
        pub(crate) keep_stub: u64,
        /// microseconds after its end before which the record must not be deleted; 0 = no limit
        pub(crate) kept: u64,
    }

    /// What `job/delete` answers.
    pub(crate) struct DeleteReply {
        /// 1 = deleted, 2 = not ended, 3 = missing, 4 = ended too recently
        pub(crate) outcome: u64,
    }

    impl Script for Delete {
        type Reply = DeleteReply;

        fn into_command(self) -> Command {
            Command::script(&DELETE, self.key.as_bytes())
                .arg(self.keep_key)
                .arg(self.keep_stub)
                .arg(self.kept)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(DeleteReply { outcome: reply.u64()? })
        }
    }

    /// The source of `job/extend`.
    pub(crate) static EXTEND: ScriptSource = ScriptSource::new(
        "job/extend",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
if whole then
  local accepted, most, limit = struct.unpack('>I8I2I4', whole)
  raw = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', 1, 1, 0, most, 0, 0, 0, 0, limit,
    0, accepted, 0, 0, 0, 0, 0, accepted, '\0\0\0\0\0\0\0\0', 0, '', '\0\0')
end
if not raw then return struct.pack('>BI8I8', 128 + 5, 0, NOW) end
local head_end = 91 + string.byte(raw, 91)
if string.byte(raw, 1) ~= 7 or struct.unpack('>I8', raw, 19) ~= tonumber(ARGV[1]) then
  return struct.pack('>BI8I8', 128 + 3, 0, NOW) .. string.sub(raw, 1, head_end)
end
local lease = math.max(struct.unpack('>I8', raw, 43), NOW + tonumber(ARGV[2]))
local packed = string.sub(raw, 1, 42) .. struct.pack('>I8', lease) .. string.sub(raw, 51)
for try = 1, 2 do
  local wrote
  if ARGV[3] == '' then
    wrote = redis.pcall('HSET', KEYS[1], 's', packed)
  else
    wrote = redis.pcall('HSET', KEYS[1], 's', packed, 'g', ARGV[3])
  end
  if type(wrote) ~= 'table' then break end
  if try == 2 or not string.find(wrote.err, 'OOM', 1, true) then return wrote end
redis.call('PERSIST', KEYS[1])
end
return struct.pack('>BI8I8', 128 + 1, 0, NOW) .. string.sub(packed, 1, head_end)
"#,
    );

    /// extends the lease of a running attempt, and stores its progress. It never shortens a lease. A lease that
    /// has run out can still be extended, if the reconciler has not ended the attempt yet.
    pub(crate) struct Extend {
        /// job
        pub(crate) key: Key,
        /// the attempt's fence
        pub(crate) fence: u64,
        /// microseconds from now
        pub(crate) lease: u64,
        /// progress to store; empty = none
        pub(crate) progress: Vec<u8>,
    }

    /// What `job/extend` answers.
    pub(crate) struct ExtendReply {
        /// SAID + outcome (applied, stale, missing), forward, now, head
        pub(crate) reply: Vec<u8>,
    }

    impl Script for Extend {
        type Reply = ExtendReply;

        fn into_command(self) -> Command {
            Command::script(&EXTEND, self.key.as_bytes())
                .arg(self.fence)
                .arg(self.lease)
                .arg(self.progress)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ExtendReply { reply: reply.bytes()? })
        }
    }

    /// The source of `job/forestall`.
    pub(crate) static FORESTALL: ScriptSource = ScriptSource::new(
        "job/forestall",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
if whole then
  local accepted, most, limit = struct.unpack('>I8I2I4', whole)
  raw = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', 1, 1, 0, most, 0, 0, 0, 0, limit,
    0, accepted, 0, 0, 0, 0, 0, accepted, '\0\0\0\0\0\0\0\0', 0, '', '\0\0')
end
if raw then return struct.pack('>BI8I8', 128 + 2, 0, NOW) .. string.sub(raw, 1, 91 + string.byte(raw, 91)) end
local event, max, timeout = struct.unpack('>BI2I4', ARGV[1])
local to = string.byte('\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\11', event)
if to == 0 then return struct.pack('>BI8I8', 128 + 5, 0, NOW) end
local note, body_hash = ARGV[4], ARGV[5] or ''
local line = struct.pack('>BBBI8I2', 12 + #note, event, to, NOW, 0) .. note
local record = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', to, 2, 0, max, 0, 0, event, 0, timeout,
  0, NOW, 0, 0, 0, 0, 0, NOW, '\0\0\0\0\0\0\0\0', 0, '', '\0\1' .. line)
if body_hash == '' then
  redis.call('HSET', KEYS[1], 's', record, 'd', ARGV[2], 'l', ARGV[3])
else
  redis.call('HSET', KEYS[1], 's', record, 'd', ARGV[2], 'l', ARGV[3], 'k', body_hash)
end
return record
"#,
    );

    /// creates a job that an event ends before its submit comes, as if the event had come right after the
    /// submit. The submit then finds it ended. If the job exists, the script changes nothing.
    pub(crate) struct Forestall {
        /// job
        pub(crate) key: Key,
        /// the event and limits
        pub(crate) bounds: ForestallBounds,
        /// the job's spec, in protobuf
        pub(crate) spec: Vec<u8>,
        /// position of its list entry
        pub(crate) place: Vec<u8>,
        /// text for the history, at most 240 bytes
        pub(crate) note: Vec<u8>,
        /// hash of the body that the submit will have
        pub(crate) body_hash: Vec<u8>,
    }

    /// What `job/forestall` answers.
    pub(crate) struct ForestallReply {
        /// the record, if created; else SAID + outcome (already = it exists, missing = the event creates none), 0, now, head
        pub(crate) reply: Vec<u8>,
    }

    impl Script for Forestall {
        type Reply = ForestallReply;

        fn into_command(self) -> Command {
            Command::script(&FORESTALL, self.key.as_bytes())
                .arg(self.bounds.to_bytes())
                .arg(self.spec)
                .arg(self.place)
                .arg(self.note)
                .optional(&[self.body_hash])
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ForestallReply { reply: reply.bytes()? })
        }
    }

    /// `bounds` of `job/forestall`.
    pub(crate) struct ForestallBounds {
        /// code of the event
        pub(crate) event: u8,
        /// the most attempts
        pub(crate) max_attempts: u16,
        /// time-out of one attempt; 0 = none
        pub(crate) timeout_ms: u32,
    }

    impl ForestallBounds {
        fn to_bytes(&self) -> Vec<u8> {
            let parts: &[&[u8]] = &[
                &self.event.to_be_bytes(),
                &self.max_attempts.to_be_bytes(),
                &self.timeout_ms.to_be_bytes(),
            ];
            parts.concat()
        }
    }

    /// The source of `job/mark_retried`.
    pub(crate) static MARK_RETRIED: ScriptSource = ScriptSource::new(
        "job/mark_retried",
        r#"if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'n', ARGV[1])
return 1
"#,
    );

    /// stores the id of the job that retries this one, if this job's record still exists.
    pub(crate) struct MarkRetried {
        /// job
        pub(crate) key: Key,
        /// the new job's raw id
        pub(crate) retried_as: Vec<u8>,
    }

    /// What `job/mark_retried` answers.
    pub(crate) struct MarkRetriedReply {
        /// 1 if the record exists, otherwise 0
        pub(crate) found: u64,
    }

    impl Script for MarkRetried {
        type Reply = MarkRetriedReply;

        fn into_command(self) -> Command {
            Command::script(&MARK_RETRIED, self.key.as_bytes())
                .arg(self.retried_as)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(MarkRetriedReply { found: reply.u64()? })
        }
    }

    /// The source of `job/relist`.
    pub(crate) static RELIST: ScriptSource = ScriptSource::new(
        "job/relist",
        r#"local place = redis.call('HGET', KEYS[1], 'l')
if not place then
  local whole = redis.call('HGET', KEYS[1], 'j')
  place = whole and string.sub(whole, 15, 22)
end
if place ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'l', ARGV[2])
return 1
"#,
    );

    /// stores a new position of the list entry, if the record still has the one that the caller read.
    pub(crate) struct Relist {
        /// job
        pub(crate) key: Key,
        /// position as the caller read it
        pub(crate) read: Vec<u8>,
        /// position of the list entry now
        pub(crate) place: Vec<u8>,
    }

    /// What `job/relist` answers.
    pub(crate) struct RelistReply {
        /// 1 if stored, otherwise 0
        pub(crate) changed: u64,
    }

    impl Script for Relist {
        type Reply = RelistReply;

        fn into_command(self) -> Command {
            Command::script(&RELIST, self.key.as_bytes())
                .arg(self.read)
                .arg(self.place)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(RelistReply { changed: reply.u64()? })
        }
    }

    /// The source of `job/set_back`.
    pub(crate) static SET_BACK: ScriptSource = ScriptSource::new(
        "job/set_back",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local raw = redis.call('HGET', KEYS[1], 's')
if not raw then return 0 end
local state, last = string.byte(raw, 1), string.byte(raw, 13)
local since, due, lease = struct.unpack('>I8I8I8I8I8I8I8', raw, 27)
local longest, latest, delay = tonumber(ARGV[1]), NOW + tonumber(ARGV[2]), tonumber(ARGV[3])
if state == 7 then
  if lease <= latest + longest then return 0 end
  lease = NOW + math.min(math.max(lease - since, 0), longest)
elseif state == 3 or (state == 2 and last == 15) then
  if since <= latest then return 0 end
  since, due = NOW, NOW + math.max(due - since, 0)
elseif (state == 1 or state == 2) and delay > 0 then
  if due <= latest + delay then return 0 end
  due = NOW + delay
else
  return 0
end
redis.call('HSET', KEYS[1], 's', string.sub(raw, 1, 27 - 1) .. struct.pack('>I8I8I8', since, due, lease)
  .. string.sub(raw, 51))
return 1
"#,
    );

    /// mends the moments that a clock left in a job's record while it ran ahead. A lease that ends later than
    /// any lease can ends after as long as it was granted for, counted from now; a wait that was counted from a moment in
    /// the future is counted from now. The state and the version stay.
    pub(crate) struct SetBack {
        /// job
        pub(crate) key: Key,
        /// the longest lease, in microseconds
        pub(crate) longest: u64,
        /// how far a moment may be ahead, in microseconds
        pub(crate) slack: u64,
        /// microseconds that the submit asked to wait; 0 = none, or until a moment of its own
        pub(crate) delay: u64,
    }

    /// What `job/set_back` answers.
    pub(crate) struct SetBackReply {
        /// 1 or 0
        pub(crate) changed: u64,
    }

    impl Script for SetBack {
        type Reply = SetBackReply;

        fn into_command(self) -> Command {
            Command::script(&SET_BACK, self.key.as_bytes())
                .arg(self.longest)
                .arg(self.slack)
                .arg(self.delay)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(SetBackReply { changed: reply.u64()? })
        }
    }

    /// The source of `job/submit`.
    pub(crate) static SUBMIT: ScriptSource = ScriptSource::new(
        "job/submit",
        r#"local NOW = redis.call('TIME')
NOW = NOW[1] * 1000000 + NOW[2]
local spec, payload, place, body_hash = ARGV[2], ARGV[3], ARGV[4], ARGV[5] or ''
local raw = redis.call('HGET', KEYS[1], 's')
local whole = not raw and redis.call('HGET', KEYS[1], 'j')
if whole then
  local accepted, most, limit = struct.unpack('>I8I2I4', whole)
  raw = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', 1, 1, 0, most, 0, 0, 0, 0, limit,
    0, accepted, 0, 0, 0, 0, 0, accepted, '\0\0\0\0\0\0\0\0', 0, '', '\0\0')
end
if raw then
  local outcome = 2
  if body_hash ~= '' and redis.call('HGET', KEYS[1], 'k') ~= body_hash then outcome = 3 end
  return struct.pack('>BI8I8', 128 + outcome, 0, NOW) .. string.sub(raw, 1, 91 + string.byte(raw, 91))
end
local max, timeout, run_at, start_by, deadline, created = struct.unpack('>I2I4i8i8i8I8', ARGV[1])
local lines = '\0\0'
if created == 0 then
  created = NOW
else
  local note = 'forgotten, and made again from its submit'
  lines = '\0\1' .. struct.pack('>BBBI8I2', 12 + #note, 0, 1, NOW, 0) .. note
end
if run_at < 0 then run_at = created - run_at end
if start_by < 0 then start_by = created - start_by end
if deadline < 0 then deadline = created - deadline end
local record = struct.pack('>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0', 1, 1, 0, max, 0, 0, 0, 0, timeout,
  0, NOW, run_at, 0, deadline, start_by, 0, created, '\0\0\0\0\0\0\0\0', 0, '', lines)
if payload ~= '' and body_hash == '' and place ~= '' then
  redis.call('HSET', KEYS[1], 's', record, 'd', spec, 'p', payload, 'l', place)
  return record
end
local fields = { 's', record, 'd', spec }
if payload ~= '' then
  fields[5] = 'p'
  fields[6] = payload
end
if body_hash ~= '' then
  fields[#fields + 1] = 'k'
  fields[#fields + 1] = body_hash
end
if place ~= '' then
  fields[#fields + 1] = 'l'
  fields[#fields + 1] = place
end
redis.call('HSET', KEYS[1], unpack(fields))
return record
"#,
    );

    /// creates a job, or answers that it exists. A repeated call changes nothing. A job that Redis has lost
    /// keeps its time of acceptance when it is created again, and the times that are relative to it.
    pub(crate) struct Submit {
        /// job
        pub(crate) key: Key,
        /// limits; times in microseconds: positive = absolute, negative = after the acceptance, 0 = none
        pub(crate) bounds: SubmitBounds,
        /// the job's spec, in protobuf
        pub(crate) spec: Vec<u8>,
        /// JSON, verbatim; empty = none
        pub(crate) payload: Vec<u8>,
        /// position of its list entry; empty = none
        pub(crate) place: Vec<u8>,
        /// hash of the request's body, for an idempotent submit
        pub(crate) body_hash: Vec<u8>,
    }

    /// What `job/submit` answers.
    pub(crate) struct SubmitReply {
        /// the record, if created; else SAID + outcome (2 = exists, 3 = with another body), 0, now, head
        pub(crate) reply: Vec<u8>,
    }

    impl Script for Submit {
        type Reply = SubmitReply;

        fn into_command(self) -> Command {
            Command::script(&SUBMIT, self.key.as_bytes())
                .arg(self.bounds.to_bytes())
                .arg(self.spec)
                .arg(self.payload)
                .arg(self.place)
                .optional(&[self.body_hash])
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(SubmitReply { reply: reply.bytes()? })
        }
    }

    /// `bounds` of `job/submit`.
    pub(crate) struct SubmitBounds {
        /// the most attempts
        pub(crate) max_attempts: u16,
        /// time-out of one attempt; 0 = none
        pub(crate) timeout_ms: u32,
        /// the job must not run before this time
        pub(crate) run_at: i64,
        /// the first attempt must start by this time
        pub(crate) start_by: i64,
        /// the job must have ended by this time
        pub(crate) deadline: i64,
        /// time of acceptance of a job that is created again; 0 = now
        pub(crate) accepted: u64,
    }

    impl SubmitBounds {
        fn to_bytes(&self) -> Vec<u8> {
            let parts: &[&[u8]] = &[
                &self.max_attempts.to_be_bytes(),
                &self.timeout_ms.to_be_bytes(),
                &self.run_at.to_be_bytes(),
                &self.start_by.to_be_bytes(),
                &self.deadline.to_be_bytes(),
                &self.accepted.to_be_bytes(),
            ];
            parts.concat()
        }
    }
}

/// Scripts on a lease.
pub(crate) mod lease {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `lease/join`.
    pub(crate) static JOIN: ScriptSource = ScriptSource::new(
        "lease/join",
        r#"local t = redis.call('TIME')
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
"#,
    );

    /// adds a replica to those that share the locks of a loop, and returns all of them.
    pub(crate) struct Join {
        /// members
        pub(crate) key: Key,
        /// the replica that joins, or renews its membership
        pub(crate) owner: Vec<u8>,
        /// how long the membership is valid without another call
        pub(crate) ttl_ms: u64,
    }

    /// What `lease/join` answers.
    pub(crate) struct JoinReply {
        /// milliseconds until another replica's membership expires, if not renewed; 0 = there is no other
        pub(crate) lapse_ms: u64,
        /// all replicas, sorted by name
        pub(crate) members: Vec<Vec<u8>>,
    }

    impl Script for Join {
        type Reply = JoinReply;

        fn into_command(self) -> Command {
            Command::script(&JOIN, self.key.as_bytes())
                .arg(self.owner)
                .arg(self.ttl_ms)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(JoinReply { lapse_ms: reply.u64()?, members: reply.list()? })
        }
    }

    /// The source of `lease/release`.
    pub(crate) static RELEASE: ScriptSource = ScriptSource::new(
        "lease/release",
        r#"local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^(.*):%d+$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"#,
    );

    /// frees a lock if this owner holds it, under any fence.
    pub(crate) struct Release {
        /// lock
        pub(crate) key: Key,
        /// name of the owner; unique per holder
        pub(crate) owner: Vec<u8>,
    }

    /// What `lease/release` answers.
    pub(crate) struct ReleaseReply {
        /// 1 if freed, otherwise 0
        pub(crate) freed: u64,
    }

    impl Script for Release {
        type Reply = ReleaseReply;

        fn into_command(self) -> Command {
            Command::script(&RELEASE, self.key.as_bytes())
                .arg(self.owner)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ReleaseReply { freed: reply.u64()? })
        }
    }

    /// The source of `lease/renew`.
    pub(crate) static RENEW: ScriptSource = ScriptSource::new(
        "lease/renew",
        r#"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"#,
    );

    /// extends a lock if this holder still has it.
    pub(crate) struct Renew {
        /// lock
        pub(crate) key: Key,
        /// `owner:fence` as granted
        pub(crate) value: Vec<u8>,
        /// new time to live, from now
        pub(crate) ttl_ms: u64,
    }

    /// What `lease/renew` answers.
    pub(crate) struct RenewReply {
        /// 1 if still held, otherwise 0
        pub(crate) held: u64,
    }

    impl Script for Renew {
        type Reply = RenewReply;

        fn into_command(self) -> Command {
            Command::script(&RENEW, self.key.as_bytes())
                .arg(self.value)
                .arg(self.ttl_ms)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(RenewReply { held: reply.u64()? })
        }
    }

    /// The source of `lease/take`.
    pub(crate) static TAKE: ScriptSource = ScriptSource::new(
        "lease/take",
        r#"local value = redis.call('GET', KEYS[1])
if value then
  local owner, fence = string.match(value, '^(.*):(%d+)$')
  if owner ~= ARGV[1] then
    return { '0', value, string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), 0)) }
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { fence, value, ARGV[2] }
end
local t = redis.call('TIME')
local fence = string.format('%.0f', t[1] * 1000000 + t[2])
value = ARGV[1] .. ':' .. fence
redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
return { fence, value, ARGV[2] }
"#,
    );

    /// grants a lock if it is free or this owner already has it. The stored value is `owner:fence`.
    pub(crate) struct Take {
        /// lock
        pub(crate) key: Key,
        /// name of the owner; unique per holder
        pub(crate) owner: Vec<u8>,
        /// how long the lock is valid without renewal
        pub(crate) ttl_ms: u64,
    }

    /// What `lease/take` answers.
    pub(crate) struct TakeReply {
        /// 0 = another owner holds it; otherwise the time of the grant, by this node's clock
        pub(crate) fence: u64,
        /// `owner:fence` of the current holder
        pub(crate) holder: Vec<u8>,
        /// milliseconds until the lock expires, unless it is renewed; 0 = unknown
        pub(crate) left_ms: u64,
    }

    impl Script for Take {
        type Reply = TakeReply;

        fn into_command(self) -> Command {
            Command::script(&TAKE, self.key.as_bytes())
                .arg(self.owner)
                .arg(self.ttl_ms)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 3)?;
            Ok(TakeReply { fence: reply.u64()?, holder: reply.bytes()?, left_ms: reply.u64()? })
        }
    }
}

/// Scripts on a limit.
pub(crate) mod limit {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `limit/give`.
    pub(crate) static GIVE: ScriptSource = ScriptSource::new(
        "limit/give",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0) - tonumber(ARGV[1]) * tonumber(ARGV[2]) / 1000
if tat <= now then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil((tat - now) / 1000) + 1000)
return math.ceil(tat - now)
"#,
    );

    /// returns tokens to a rate limit, for requests that turned out to cost nothing. Never exceeds the burst.
    pub(crate) struct Give {
        /// bucket
        pub(crate) key: Key,
        /// tokens to return
        pub(crate) n: u64,
        /// nanoseconds between two tokens at the steady rate
        pub(crate) interval: u64,
    }

    /// What `limit/give` answers.
    pub(crate) struct GiveReply {
        /// microseconds until all tokens are available again
        pub(crate) left: u64,
    }

    impl Script for Give {
        type Reply = GiveReply;

        fn into_command(self) -> Command {
            Command::script(&GIVE, self.key.as_bytes())
                .arg(self.n)
                .arg(self.interval)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(GiveReply { left: reply.u64()? })
        }
    }

    /// The source of `limit/take`.
    pub(crate) static TAKE: ScriptSource = ScriptSource::new(
        "limit/take",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local n, interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2]) / 1000, tonumber(ARGV[3])
local full = now + burst * interval
local tat = math.min(math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now), full)
local granted = math.min(n, math.floor((full - tat) / interval + 0.000001))
local wanted = 1
if ARGV[4] == '1' then
  wanted = n
  if granted < n then granted = 0 end
end
if granted > 0 then
  tat = tat + granted * interval
  redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil((tat - now) / 1000) + 1000)
end
local after = 0
if granted < n then after = math.ceil(math.max(tat + wanted * interval - full, 0)) end
return { string.format('%.0f', granted), string.format('%.0f', after) }
"#,
    );

    /// takes up to n tokens of a rate limit (GCRA), never more than the burst.
    pub(crate) struct Take {
        /// bucket
        pub(crate) key: Key,
        /// tokens wanted
        pub(crate) n: u64,
        /// nanoseconds between two tokens at the steady rate
        pub(crate) interval: u64,
        /// the most tokens at once
        pub(crate) burst: u64,
        /// 1 = take all n tokens or none
        pub(crate) whole: u64,
    }

    /// What `limit/take` answers.
    pub(crate) struct TakeReply {
        /// tokens taken
        pub(crate) granted: u64,
        /// microseconds until one more token (if `whole`, all n tokens) is available
        pub(crate) retry_after: u64,
    }

    impl Script for Take {
        type Reply = TakeReply;

        fn into_command(self) -> Command {
            Command::script(&TAKE, self.key.as_bytes())
                .arg(self.n)
                .arg(self.interval)
                .arg(self.burst)
                .arg(self.whole)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(TakeReply { granted: reply.u64()?, retry_after: reply.u64()? })
        }
    }
}

/// Scripts on a line.
pub(crate) mod line {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `line/drop`.
    pub(crate) static DROP: ScriptSource = ScriptSource::new(
        "line/drop",
        r#"if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
"#,
    );

    /// removes the name of a line, if no scheduler has noted it since the caller read it.
    pub(crate) struct Drop {
        /// lines
        pub(crate) key: Key,
        /// what the line's jobs require
        pub(crate) member: Vec<u8>,
        /// score as the caller read it
        pub(crate) read: u64,
    }

    /// What `line/drop` answers.
    pub(crate) struct DropReply {
        /// 1 if removed, otherwise 0
        pub(crate) dropped: u64,
    }

    impl Script for Drop {
        type Reply = DropReply;

        fn into_command(self) -> Command {
            Command::script(&DROP, self.key.as_bytes())
                .arg(self.member)
                .arg(self.read)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(DropReply { dropped: reply.u64()? })
        }
    }

    /// The source of `line/note`.
    pub(crate) static NOTE: ScriptSource = ScriptSource::new(
        "line/note",
        r#"local t = redis.call('TIME')
local stamp = string.format('%.0f', t[1] * 1000000 + t[2])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], stamp, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return stamp
"#,
    );

    /// adds names of a topic's lines, with the current time. The set expires `ttl_ms` after the last call.
    pub(crate) struct Note {
        /// lines
        pub(crate) key: Key,
        /// how long the set is kept after this call
        pub(crate) ttl_ms: u64,
        /// what the jobs of each line require
        pub(crate) members: Vec<Vec<u8>>,
    }

    /// What `line/note` answers.
    pub(crate) struct NoteReply {
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Note {
        type Reply = NoteReply;

        fn into_command(self) -> Command {
            Command::script(&NOTE, self.key.as_bytes())
                .arg(self.ttl_ms)
                .arg(&self.members)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(NoteReply { now: reply.u64()? })
        }
    }
}

/// Scripts on a listing.
pub(crate) mod listing {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `listing/drop`.
    pub(crate) static DROP: ScriptSource = ScriptSource::new(
        "listing/drop",
        r#"local length = redis.call('LLEN', KEYS[1])
if length ~= 0 and length ~= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[1])
return 1
"#,
    );

    /// removes a list whose jobs are all deleted, unless a job was added since the caller read it.
    pub(crate) struct Drop {
        /// listing
        pub(crate) key: Key,
        /// number of entries as the caller read it
        pub(crate) length: u64,
    }

    /// What `listing/drop` answers.
    pub(crate) struct DropReply {
        /// 1 if the list is removed, by this call or before; otherwise 0
        pub(crate) dropped: u64,
    }

    impl Script for Drop {
        type Reply = DropReply;

        fn into_command(self) -> Command {
            Command::script(&DROP, self.key.as_bytes())
                .arg(self.length)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(DropReply { dropped: reply.u64()? })
        }
    }

    /// The source of `listing/put_back`.
    pub(crate) static PUT_BACK: ScriptSource = ScriptSource::new(
        "listing/put_back",
        r#"local at, most, job = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local blank = string.rep('\0', 16)
local length = redis.call('LLEN', KEYS[1])
if at < length then
  local stands = redis.call('LINDEX', KEYS[1], at)
  if stands == job then return at end
  if stands == blank then
    redis.call('LSET', KEYS[1], at, job)
    return at
  end
elseif at - length <= most then
  local blanks = {}
  for i = 1, math.min(at - length, 1000) do blanks[i] = blank end
  for _ = 1, math.floor((at - length) / 1000) do redis.call('RPUSH', KEYS[1], unpack(blanks)) end
  local rest = (at - length) % 1000
  if rest > 0 then redis.call('RPUSH', KEYS[1], unpack(blanks, 1, rest)) end
end
return redis.call('RPUSH', KEYS[1], job) - 1
"#,
    );

    /// lists a job at its position again. If entries before it are missing, the script adds blank ones,
    /// so that the jobs of these positions can be put back later. If another job has the position, or too many entries are
    /// missing, the script adds the job at the end, and the caller stores the new position in the record.
    pub(crate) struct PutBack {
        /// listing
        pub(crate) key: Key,
        /// position that the record has
        pub(crate) position: u64,
        /// the most blank entries to add
        pub(crate) most: u64,
        /// the job's raw id
        pub(crate) job: Vec<u8>,
    }

    /// What `listing/put_back` answers.
    pub(crate) struct PutBackReply {
        /// position of the job now
        pub(crate) position: u64,
    }

    impl Script for PutBack {
        type Reply = PutBackReply;

        fn into_command(self) -> Command {
            Command::script(&PUT_BACK, self.key.as_bytes())
                .arg(self.position)
                .arg(self.most)
                .arg(self.job)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(PutBackReply { position: reply.u64()? })
        }
    }
}

/// Scripts on a note.
pub(crate) mod note {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `note/put`.
    pub(crate) static PUT: ScriptSource = ScriptSource::new(
        "note/put",
        r#"local stands = redis.call('GET', KEYS[1])
if stands then return stands end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"#,
    );

    /// stores which offers an HTTP worker's lease request received. The first note wins and never changes.
    pub(crate) struct Put {
        /// note
        pub(crate) key: Key,
        /// raw ids and versions of the offers
        pub(crate) offers: Vec<u8>,
        /// how long the note is kept
        pub(crate) ttl_ms: u64,
    }

    /// What `note/put` answers.
    pub(crate) struct PutReply {
        /// the stored note
        pub(crate) offers: Vec<u8>,
    }

    impl Script for Put {
        type Reply = PutReply;

        fn into_command(self) -> Command {
            Command::script(&PUT, self.key.as_bytes())
                .arg(self.offers)
                .arg(self.ttl_ms)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(PutReply { offers: reply.bytes()? })
        }
    }
}

/// Scripts on a operation.
pub(crate) mod operation {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `operation/cancel`.
    pub(crate) static CANCEL: ScriptSource = ScriptSource::new(
        "operation/cancel",
        r#"local status = redis.call('HGET', KEYS[1], 'status')
if not status then return { 0, {} } end
if status == 'running' then
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000000 + t[2])
  redis.call('HSET', KEYS[1], 'status', 'cancelled', 'finished_at', now)
  status = 'cancelled'
end
return { status == 'cancelled' and 1 or 2, redis.call('HGETALL', KEYS[1]) }
"#,
    );

    /// ends a running operation. It does not undo what the operation has done.
    pub(crate) struct Cancel {
        /// operation
        pub(crate) key: Key,
    }

    /// What `operation/cancel` answers.
    pub(crate) struct CancelReply {
        /// 0 = missing, 1 = cancelled, by this call or before, 2 = ended in another way
        pub(crate) outcome: u64,
        /// the operation as stored: name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    impl Script for Cancel {
        type Reply = CancelReply;

        fn into_command(self) -> Command {
            Command::script(&CANCEL, self.key.as_bytes())
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(CancelReply { outcome: reply.u64()?, fields: reply.list()? })
        }
    }

    /// The source of `operation/claim`.
    pub(crate) static CLAIM: ScriptSource = ScriptSource::new(
        "operation/claim",
        r#"local stands = redis.call('HMGET', KEYS[1], 'status', 'owner', 'until')
if not stands[1] then return { 0, {} } end
if stands[1] ~= 'running' then return { 3, {} } end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if stands[2] ~= ARGV[1] then
  if stands[2] and tonumber(stands[3]) > now then return { 2, {} } end
  redis.call('HINCRBY', KEYS[1], 'fence', 1)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
return { 1, redis.call('HGETALL', KEYS[1]) }
"#,
    );

    /// lets one replica carry out a running operation for some time. When the claim has expired, another
    /// replica can claim the operation, under a higher fence.
    pub(crate) struct Claim {
        /// operation
        pub(crate) key: Key,
        /// the replica that asks; unique per process
        pub(crate) owner: Vec<u8>,
        /// length of the claim in microseconds
        pub(crate) hold: u64,
    }

    /// What `operation/claim` answers.
    pub(crate) struct ClaimReply {
        /// 0 = missing, 1 = claimed, 2 = another replica has it, 3 = not running any more
        pub(crate) outcome: u64,
        /// the operation, if claimed: name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    impl Script for Claim {
        type Reply = ClaimReply;

        fn into_command(self) -> Command {
            Command::script(&CLAIM, self.key.as_bytes())
                .arg(self.owner)
                .arg(self.hold)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(ClaimReply { outcome: reply.u64()?, fields: reply.list()? })
        }
    }

    /// The source of `operation/create`.
    pub(crate) static CREATE: ScriptSource = ScriptSource::new(
        "operation/create",
        r#"local created = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000000 + t[2])
  redis.call('HSET', KEYS[1], 'status', 'running', 'created_at', now, unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  created = 1
end
return { created, redis.call('HGETALL', KEYS[1]) }
"#,
    );

    /// stores a bulk operation as running, unless it exists.
    pub(crate) struct Create {
        /// operation
        pub(crate) key: Key,
        /// how long the operation is kept
        pub(crate) ttl_ms: u64,
        /// name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    /// What `operation/create` answers.
    pub(crate) struct CreateReply {
        /// 1 if created, 0 if it existed
        pub(crate) created: u64,
        /// the operation as stored: name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    impl Script for Create {
        type Reply = CreateReply;

        fn into_command(self) -> Command {
            Command::script(&CREATE, self.key.as_bytes())
                .arg(self.ttl_ms)
                .arg(&self.fields)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(CreateReply { created: reply.u64()?, fields: reply.list()? })
        }
    }

    /// The source of `operation/note`.
    pub(crate) static NOTE: ScriptSource = ScriptSource::new(
        "operation/note",
        r#"local stands = redis.call('HMGET', KEYS[1], 'fence', 'status')
if stands[1] ~= ARGV[1] then return '' end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if stands[2] ~= 'running' then return stands[2] end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if ARGV[3] == 'running' then
  redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[2])))
else
  redis.call('HSET', KEYS[1], 'status', ARGV[3], 'finished_at', string.format('%.0f', now))
end
return ARGV[3]
"#,
    );

    /// stores the progress of an operation, if the caller's fence is still valid. It stores progress after a
    /// cancel too, but changes the status of a running operation only.
    pub(crate) struct Note {
        /// operation
        pub(crate) key: Key,
        /// fence of the caller's claim
        pub(crate) fence: u64,
        /// microseconds from now for which the claim is extended
        pub(crate) hold: u64,
        /// `running`, or the final status
        pub(crate) status: Vec<u8>,
        /// name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    /// What `operation/note` answers.
    pub(crate) struct NoteReply {
        /// the status now; empty if another replica has the operation
        pub(crate) status: Vec<u8>,
    }

    impl Script for Note {
        type Reply = NoteReply;

        fn into_command(self) -> Command {
            Command::script(&NOTE, self.key.as_bytes())
                .arg(self.fence)
                .arg(self.hold)
                .arg(self.status)
                .arg(&self.fields)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(NoteReply { status: reply.bytes()? })
        }
    }
}

/// Scripts on a queue.
pub(crate) mod queue {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `queue/claim`.
    pub(crate) static CLAIM: ScriptSource = ScriptSource::new(
        "queue/claim",
        r#"local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local n = tonumber(ARGV[1])
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - 8000000000000000), 'LIMIT', 0, n)
if #members < n then
  local latest = string.format('(%.0f', now + tonumber(ARGV[2]) + 60000000 - 8000000000000000)
  local waiting = redis.call('ZRANGEBYSCORE', KEYS[1], latest, '+inf', 'LIMIT', 0, n - #members)
  for i = 1, #waiting do members[#members + 1] = waiting[i] end
end
if #members == 0 then return members end
local score = string.format('%.0f', now + tonumber(ARGV[2]) - 8000000000000000)
local entries = {}
for i = 1, #members do
  entries[2 * i - 1] = score
  entries[2 * i] = members[i]
end
redis.call('ZADD', KEYS[1], unpack(entries))
return members
"#,
    );

    /// claims the first entries of a backlog for a few seconds, so that no two schedulers take the same ones.
    /// The score of a claimed entry is the end of its claim minus CLAIM, which is far below the score of any entry that
    /// waits. So entries with expired claims come first again, in their old order. A claim that ends more than SLACK later
    /// than this one would was made while a clock ran ahead, and counts as expired. No entry is removed.
    pub(crate) struct Claim {
        /// queue
        pub(crate) key: Key,
        /// the most entries to claim
        pub(crate) n: u64,
        /// length of the claim in microseconds
        pub(crate) hold: u64,
    }

    /// What `queue/claim` answers.
    pub(crate) struct ClaimReply {
        /// the claimed entries: those with expired claims, then the oldest
        pub(crate) members: Vec<Vec<u8>>,
    }

    impl Script for Claim {
        type Reply = ClaimReply;

        fn into_command(self) -> Command {
            Command::script(&CLAIM, self.key.as_bytes())
                .arg(self.n)
                .arg(self.hold)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(ClaimReply { members: reply.list()? })
        }
    }
}

/// Scripts on a reread.
pub(crate) mod reread {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `reread/mark`.
    pub(crate) static MARK: ScriptSource = ScriptSource::new(
        "reread/mark",
        r#"if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"#,
    );

    /// stores the mark of the last complete reread, if it has not changed since the caller read it.
    pub(crate) struct Mark {
        /// mark
        pub(crate) key: Key,
        /// the mark as the caller read it; empty = none
        pub(crate) read: Vec<u8>,
        /// the new mark
        pub(crate) mark: Vec<u8>,
    }

    /// What `reread/mark` answers.
    pub(crate) struct MarkReply {
        /// 1 if stored, otherwise 0
        pub(crate) moved: u64,
    }

    impl Script for Mark {
        type Reply = MarkReply;

        fn into_command(self) -> Command {
            Command::script(&MARK, self.key.as_bytes())
                .arg(self.read)
                .arg(self.mark)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(MarkReply { moved: reply.u64()? })
        }
    }
}

/// Scripts on a run.
pub(crate) mod run {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `run/create`.
    pub(crate) static CREATE: ScriptSource = ScriptSource::new(
        "run/create",
        r#"local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  return { redis.call('HGET', KEYS[1], 'v') == ARGV[1] and 1 or 0, now }
end
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'l', ARGV[2])
for i = 3, #ARGV, 1000 do redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
return { 1, now }
"#,
    );

    /// stores a run, unless its id is taken. A repetition of the call that created it answers the same, until the
    /// run is saved. The script never reads the values.
    pub(crate) struct Create {
        /// run
        pub(crate) key: Key,
        /// the first version: a counter, then the caller's random nonce
        pub(crate) version: Vec<u8>,
        /// position of its list entry
        pub(crate) place: Vec<u8>,
        /// name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    /// What `run/create` answers.
    pub(crate) struct CreateReply {
        /// 1 if created, by this call or by an earlier try of it; 0 if the id is taken
        pub(crate) created: u64,
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Create {
        type Reply = CreateReply;

        fn into_command(self) -> Command {
            Command::script(&CREATE, self.key.as_bytes())
                .arg(self.version)
                .arg(self.place)
                .arg(&self.fields)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(CreateReply { created: reply.u64()?, now: reply.u64()? })
        }
    }

    /// The source of `run/delete`.
    pub(crate) static DELETE: ScriptSource = ScriptSource::new(
        "run/delete",
        r#"local stands = redis.call('HGET', KEYS[1], 'v')
if not stands then return 3 end
if stands ~= ARGV[1] then return 2 end
redis.call('UNLINK', KEYS[1])
return 1
"#,
    );

    /// removes a run, if its version is still the one that the caller has read.
    pub(crate) struct Delete {
        /// run
        pub(crate) key: Key,
        /// the version that the caller has read
        pub(crate) seen: Vec<u8>,
    }

    /// What `run/delete` answers.
    pub(crate) struct DeleteReply {
        /// 1 = removed, 2 = the version is another one, 3 = there is no such run
        pub(crate) outcome: u64,
    }

    impl Script for Delete {
        type Reply = DeleteReply;

        fn into_command(self) -> Command {
            Command::script(&DELETE, self.key.as_bytes())
                .arg(self.seen)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(DeleteReply { outcome: reply.u64()? })
        }
    }

    /// The source of `run/read`.
    pub(crate) static READ: ScriptSource = ScriptSource::new(
        "run/read",
        r#"local t = redis.call('TIME')
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
"#,
    );

    /// reads a run, whole or some fields of it, with the time of its node.
    pub(crate) struct Read {
        /// run
        pub(crate) key: Key,
        /// the fields to read; none = all
        pub(crate) names: Vec<Vec<u8>>,
    }

    /// What `run/read` answers.
    pub(crate) struct ReadReply {
        /// the version; empty = there is no such run
        pub(crate) version: Vec<u8>,
        /// position of its list entry
        pub(crate) place: Vec<u8>,
        /// this node's time
        pub(crate) now: u64,
        /// name, value; repeated for each field that exists, without version and position
        pub(crate) fields: Vec<Vec<u8>>,
    }

    impl Script for Read {
        type Reply = ReadReply;

        fn into_command(self) -> Command {
            Command::script(&READ, self.key.as_bytes())
                .arg(&self.names)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 4)?;
            Ok(ReadReply { version: reply.bytes()?, place: reply.bytes()?, now: reply.u64()?, fields: reply.list()? })
        }
    }

    /// The source of `run/save`.
    pub(crate) static SAVE: ScriptSource = ScriptSource::new(
        "run/save",
        r#"local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local stands = redis.call('HGET', KEYS[1], 'v')
if stands == ARGV[2] then return { 1, stands, now } end
if stands ~= ARGV[1] then return { 0, stands or '', now } end
local set = 3 + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'v', ARGV[2])
for i = 4, set, 1000 do redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, set))) end
for i = set + 1, #ARGV, 1000 do redis.call('HDEL', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
return { 1, ARGV[2], now }
"#,
    );

    /// writes what changed of a run, if its version is still the one that the caller has read. A version is a
    /// counter and the random nonce of the replica that saved it, compared as one: after a failover, two replicas can reach
    /// the same counter. The script never reads the values.
    pub(crate) struct Save {
        /// run
        pub(crate) key: Key,
        /// the version that the caller has read
        pub(crate) seen: Vec<u8>,
        /// the version to store; unique per call, so that a repeated call gets the same answer
        pub(crate) next: Vec<u8>,
        /// how many of the following are names and values to write; the others are names to remove
        pub(crate) set: u64,
        /// name, value; repeated for each field to write. Then the names to remove
        pub(crate) fields: Vec<Vec<u8>>,
    }

    /// What `run/save` answers.
    pub(crate) struct SaveReply {
        /// 1 = saved, by this call or by an earlier try of it; 0 = the version is another one
        pub(crate) outcome: u64,
        /// the version now; empty = there is no such run
        pub(crate) version: Vec<u8>,
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Save {
        type Reply = SaveReply;

        fn into_command(self) -> Command {
            Command::script(&SAVE, self.key.as_bytes())
                .arg(self.seen)
                .arg(self.next)
                .arg(self.set)
                .arg(&self.fields)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 3)?;
            Ok(SaveReply { outcome: reply.u64()?, version: reply.bytes()?, now: reply.u64()? })
        }
    }
}

/// Scripts on a setting.
pub(crate) mod setting {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `setting/put`.
    pub(crate) static PUT: ScriptSource = ScriptSource::new(
        "setting/put",
        r#"local stands = redis.call('HMGET', KEYS[1], 'version', 'writer')
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
"#,
    );

    /// stores versioned settings, if their version is still the one that the writer saw.
    /// No version is used twice, even if a failover loses one: a version is at least the current time.
    pub(crate) struct Put {
        /// settings
        pub(crate) key: Key,
        /// unique per call, so that a repeated call gets the same answer as the first
        pub(crate) writer: Vec<u8>,
        /// the version that must be stored now: `any`, a number, or 0 = no version yet
        pub(crate) seen: Vec<u8>,
        /// name, value; repeated for each field. An empty value removes the name
        pub(crate) fields: Vec<Vec<u8>>,
    }

    /// What `setting/put` answers.
    pub(crate) struct PutReply {
        /// 1 = stored, by this call or by an earlier try of it; 0 = the stored version is another one
        pub(crate) outcome: u64,
        /// the settings as stored: name, value; repeated for each field
        pub(crate) fields: Vec<Vec<u8>>,
    }

    impl Script for Put {
        type Reply = PutReply;

        fn into_command(self) -> Command {
            Command::script(&PUT, self.key.as_bytes())
                .arg(self.writer)
                .arg(self.seen)
                .arg(&self.fields)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(PutReply { outcome: reply.u64()?, fields: reply.list()? })
        }
    }
}

/// Scripts on a slot.
pub(crate) mod slot {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `slot/free`.
    pub(crate) static FREE: ScriptSource = ScriptSource::new(
        "slot/free",
        r#"local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local freed = 0
if score and (ARGV[2] == '' or tonumber(score) == tonumber(ARGV[2])) then
  freed = redis.call('ZREM', KEYS[1], ARGV[1])
end
return { freed, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1] or '' }
"#,
    );

    /// frees a slot, or removes a job that waits for one. Returns the next job that waits.
    pub(crate) struct Free {
        /// slots
        pub(crate) key: Key,
        /// job and version at admission
        pub(crate) member: Vec<u8>,
        /// score that the member must still have; empty = any
        pub(crate) seen: Vec<u8>,
    }

    /// What `slot/free` answers.
    pub(crate) struct FreeReply {
        /// 1 if removed, otherwise 0
        pub(crate) freed: u64,
        /// the first member that waits; empty = none
        pub(crate) next: Vec<u8>,
    }

    impl Script for Free {
        type Reply = FreeReply;

        fn into_command(self) -> Command {
            Command::script(&FREE, self.key.as_bytes())
                .arg(self.member)
                .arg(self.seen)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 2)?;
            Ok(FreeReply { freed: reply.u64()?, next: reply.bytes()? })
        }
    }

    /// The source of `slot/keep`.
    pub(crate) static KEEP: ScriptSource = ScriptSource::new(
        "slot/keep",
        r#"local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.0f', t[1] * 1000000 + t[2] + tonumber(ARGV[3])), ARGV[1])
return 1
"#,
    );

    /// sets the next check of a slot that its job still holds.
    pub(crate) struct Keep {
        /// slots
        pub(crate) key: Key,
        /// job and version at admission
        pub(crate) member: Vec<u8>,
        /// score that the member must still have
        pub(crate) seen: Vec<u8>,
        /// microseconds from now until the next check
        pub(crate) look: u64,
    }

    /// What `slot/keep` answers.
    pub(crate) struct KeepReply {
        /// 1 if set, otherwise 0
        pub(crate) kept: u64,
    }

    impl Script for Keep {
        type Reply = KeepReply;

        fn into_command(self) -> Command {
            Command::script(&KEEP, self.key.as_bytes())
                .arg(self.member)
                .arg(self.seen)
                .arg(self.look)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(KeepReply { kept: reply.u64()? })
        }
    }

    /// The source of `slot/take`.
    pub(crate) static TAKE: ScriptSource = ScriptSource::new(
        "slot/take",
        r#"local t = redis.call('TIME')
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
"#,
    );

    /// gives a job a slot of a concurrency limit. If all slots are taken and `turn` is negative, the job waits.
    /// Each limit is one sorted set. The score of a job that holds a slot is the time when a scheduler should check whether
    /// the job still needs it: the job's record decides that, and time alone never frees a slot. The score of a job that
    /// waits is negative; the lowest is first.
    pub(crate) struct Take {
        /// slots
        pub(crate) key: Key,
        /// job and version at admission
        pub(crate) member: Vec<u8>,
        /// number of slots
        pub(crate) max: u64,
        /// microseconds from now until the first check of the slot
        pub(crate) look: u64,
        /// negative: score to wait with, the lowest is first; 0 = the job does not wait
        pub(crate) turn: i64,
    }

    /// What `slot/take` answers.
    pub(crate) struct TakeReply {
        /// 1 = admitted, 2 = was admitted before, 3 = all slots are taken
        pub(crate) outcome: u64,
        /// 2: this member and its score; 3: members and scores of up to 64 jobs that hold slots
        pub(crate) holders: Vec<Vec<u8>>,
        /// this node's time
        pub(crate) now: u64,
    }

    impl Script for Take {
        type Reply = TakeReply;

        fn into_command(self) -> Command {
            Command::script(&TAKE, self.key.as_bytes())
                .arg(self.member)
                .arg(self.max)
                .arg(self.look)
                .arg(self.turn)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 3)?;
            Ok(TakeReply { outcome: reply.u64()?, holders: reply.list()?, now: reply.u64()? })
        }
    }
}

/// Scripts on a timeline.
pub(crate) mod timeline {
    use crate::{
        StoreError,
        keys::Key,
        router::{Command, ScriptSource},
        script::{Replied, Script},
    };

    /// The source of `timeline/add`.
    pub(crate) static ADD: ScriptSource = ScriptSource::new(
        "timeline/add",
        r#"local stands = redis.call('LINDEX', KEYS[1], 0)
local first = tonumber(ARGV[1])
local known, next = tonumber(stands or '0'), first + #ARGV - 1
if known >= next then return stands or '0' end
local text = string.format('%.0f', next)
if stands then redis.call('LSET', KEYS[1], 0, text) else redis.call('RPUSH', KEYS[1], text) end
for i = 2 + math.max(known - first, 0), #ARGV, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
local length = redis.call('LLEN', KEYS[1])
if length > 1 + 1000 + 1000 + 100 then
  for i = 1 + 1000, length - 1000 - 1 do redis.call('LSET', KEYS[1], i, '') end
  redis.call('LREM', KEYS[1], 0, '')
end
return text
"#,
    );

    /// adds entries to the end of a run's timeline. Entries that it has already are skipped, so a call may be
    /// repeated. The first 1,000 entries and the last 1,000 stay; those between are removed, 100 or more at once.
    pub(crate) struct Add {
        /// timeline
        pub(crate) key: Key,
        /// number of the first of these entries, counted from 0 over the whole run
        pub(crate) first: u64,
        /// the entries; none is empty
        pub(crate) entries: Vec<Vec<u8>>,
    }

    /// What `timeline/add` answers.
    pub(crate) struct AddReply {
        /// number of the next entry
        pub(crate) next: u64,
    }

    impl Script for Add {
        type Reply = AddReply;

        fn into_command(self) -> Command {
            Command::script(&ADD, self.key.as_bytes())
                .arg(self.first)
                .arg(&self.entries)
        }

        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {
            let mut reply = Replied::new(reply, 1)?;
            Ok(AddReply { next: reply.u64()? })
        }
    }
}
