//! Sends the commands of a call: grouped by node, one pipeline each. Each reply is judged separately. Commands that may
//! succeed on another node or later are sent again until the time budget has passed.
//!
//! The groups are independent: a dead node delays only the commands for its keys. The commands of one call are not
//! ordered, and each may be carried out more than once.

use std::{
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Cmd, Pipeline, Value};

use super::{
    Inner,
    address::NodeAddr,
    command::{Command, ScriptSource},
    durable::{Durability, Kept, Own},
    node::{Fault, Live, Node},
    observe_command,
    slots::slot_of,
};
use crate::error::StoreError;

/// How many redirects and script loads of a command are followed at once; after that there are pauses.
const AT_ONCE: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long one try waits for a connection. Connecting continues afterwards, but the slot may have moved, so the next
/// try reads the map again.
const CONNECT_PATIENCE: Duration = Duration::from_millis(300);
/// How long the marker of a durable write is kept.
const MARKER_TTL_MS: u64 = 60_000;

/// The parameters of a call, for all its commands.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) deadline: Instant,
    pub(super) durable: Option<Durability>,
}

/// A reply, and how many replicas or disks had the write then (zero for ordinary calls).
type Outcome = Result<(Value, usize), StoreError>;

struct Item {
    /// Its index in the call.
    at: usize,
    command: Command,
    /// The node that an ASK reply named; valid for one try.
    ask: Option<Arc<Node>>,
    /// The node does not have the script.
    eval: bool,
    tries: u32,
    why: String,
}

impl Item {
    fn again(mut self, why: impl Into<String>) -> Item {
        self.tries += 1;
        self.why = why.into();
        self
    }
}

struct Group {
    node: Arc<Node>,
    asking: bool,
    items: Vec<Item>,
}

enum Leg {
    Send(Group),
    Pause(Duration, Vec<Item>),
}

/// The result of one leg.
#[derive(Default)]
struct Landed {
    done: Vec<(usize, Outcome)>,
    /// To be sent again at once.
    now: Vec<Item>,
    /// To be sent again after a pause.
    later: Vec<Item>,
    moved: Vec<(u16, NodeAddr)>,
    refresh: bool,
}

/// Sends all commands until each has a reply. Returns one outcome per command, in order, before the deadline.
pub(super) async fn drive(inner: &Inner, commands: Vec<Command>, call: Call) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = commands.iter().map(|_| None).collect();
    let items = commands
        .into_iter()
        .enumerate()
        .map(|(at, command)| Item { at, command, ask: None, eval: false, tries: 0, why: String::new() })
        .collect();
    let mut legs = FuturesUnordered::new();
    let mut landed = Landed { now: items, ..Landed::default() };
    loop {
        for (at, outcome) in landed.done.drain(..) {
            outcomes[at] = Some(outcome);
        }
        if !landed.moved.is_empty() {
            inner.moved(&landed.moved);
        }
        if !landed.now.is_empty() {
            for group in route(inner, std::mem::take(&mut landed.now), &mut landed) {
                legs.push(fly(inner, Leg::Send(group), call));
            }
        }
        if landed.refresh {
            inner.want_refresh();
        }
        if let Some(tries) = landed.later.iter().map(|item| item.tries).max() {
            let pause = pause(tries);
            if Instant::now() + pause < call.deadline {
                legs.push(fly(inner, Leg::Pause(pause, std::mem::take(&mut landed.later)), call));
            }
            for item in landed.later.drain(..) {
                outcomes[item.at] = Some(Err(StoreError::unavailable(item.why)));
            }
        }
        match legs.next().await {
            Some(next) => landed = next,
            None => break,
        }
    }
    let lost = || Err(StoreError::unavailable("the command was lost"));
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
}

/// Ten milliseconds, doubling up to 200; up to half of it is random.
fn pause(tries: u32) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(LONGEST_PAUSE);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Groups items by the node that serves them.
fn route(inner: &Inner, items: Vec<Item>, landed: &mut Landed) -> Vec<Group> {
    let map = inner.map.load();
    if !inner.cluster {
        return map.primaries().first().map(|node| vec![group(node, false, items)]).unwrap_or_default();
    }
    let mut groups: Vec<Group> = Vec::new();
    for mut item in items {
        let ask = item.ask.take();
        let asking = ask.is_some();
        let slot = slot_of(item.command.key());
        let Some(node) = ask.as_ref().or_else(|| map.owner(slot)) else {
            landed.refresh = true;
            landed.later.push(item.again(format!("no node serves slot {slot}")));
            continue;
        };
        match groups.iter_mut().find(|group| group.asking == asking && Arc::ptr_eq(&group.node, node)) {
            Some(group) => group.items.push(item),
            None => groups.push(group(node, asking, vec![item])),
        }
    }
    groups
}

fn group(node: &Arc<Node>, asking: bool, items: Vec<Item>) -> Group {
    Group { node: Arc::clone(node), asking, items }
}

async fn fly(inner: &Inner, leg: Leg, call: Call) -> Landed {
    match leg {
        Leg::Send(group) => send(inner, group, call).await,
        Leg::Pause(pause, items) => {
            tokio::time::sleep(pause).await;
            Landed { now: items, ..Landed::default() }
        }
    }
}

/// The connection of one leg.
enum Lane {
    Shared(Arc<Live>),
    Own(Own),
}

async fn send(inner: &Inner, mut group: Group, call: Call) -> Landed {
    let node = Arc::clone(&group.node);
    let patience = call.deadline.min(Instant::now() + CONNECT_PATIENCE);
    let lane = match call.durable {
        None => node.live(patience).await.map(Lane::Shared),
        Some(_) => inner.dedicated.take(&node, call.deadline).await.map(Lane::Own),
    };
    let lane = match lane {
        Ok(lane) => lane,
        Err(Fault::Away(why)) => return all_later(group.items, &why),
        Err(refused) => {
            let refused = StoreError::from(refused);
            let done = group.items.into_iter().map(|item| (item.at, Err(refused.clone()))).collect();
            return Landed { done, ..Landed::default() };
        }
    };
    let pipeline = pack(inner, &mut group, call.durable);
    let wait = call.durable.map_or(Duration::ZERO, |durable| durable.wait);
    let sent = Instant::now();
    let left = call.deadline.saturating_duration_since(sent).max(Duration::from_millis(1));
    let limit = left.min(inner.settings.response_timeout + wait);
    let mut handle = match &lane {
        Lane::Shared(live) => live.handle(limit),
        Lane::Own(own) => {
            let mut conn = own.conn.clone();
            conn.set_response_timeout(limit);
            conn
        }
    };
    let replies = handle.send_packed_commands(&pipeline, 0, pipeline.len()).await;
    observe_command(sent.elapsed());
    match replies {
        Ok(values) => {
            match lane {
                Lane::Shared(live) => node.heard(&live),
                Lane::Own(own) => inner.dedicated.give_back(own),
            }
            judge_all(inner, group, &pipeline, values, call.durable)
        }
        Err(error) => {
            let fault = match &lane {
                Lane::Shared(live) => node.failed(live, sent.elapsed(), &error),
                Lane::Own(_) => {
                    inner.dedicated.forget(&node.addr);
                    Fault::Away(format!("{}: {}", node.addr, super::node::describe(&error)))
                }
            };
            let why = match fault {
                Fault::Away(why) => why,
                Fault::Refused { message, .. } => message,
            };
            restore(&mut group, &pipeline);
            let mut landed = all_later(group.items, &why);
            // If the connection was only old (the server restarted), a new one is worth a try at once.
            if !error.is_timeout() {
                let (now, later) = landed.later.into_iter().partition(|item| item.tries <= 1);
                (landed.now, landed.later) = (now, later);
            }
            landed
        }
    }
}

fn all_later(items: Vec<Item>, why: &str) -> Landed {
    let later = items.into_iter().map(|item| item.again(why)).collect();
    Landed { later, refresh: true, ..Landed::default() }
}

/// Moves the commands into a pipeline. If several commands need the same script, the first contains its text and the
/// others call it by its hash. A durable call always sends the text: it would learn that a script is missing only after
/// its wait.
fn pack(inner: &Inner, group: &mut Group, durable: Option<Durability>) -> Pipeline {
    let marker = durable.map(|_| inner.dedicated.marker(group.items.first().map_or(b"", |item| item.command.key())));
    let mut pipeline = Pipeline::with_capacity(group.items.len() * if group.asking { 2 } else { 1 } + 3);
    let mut loaded: Vec<&'static ScriptSource> = Vec::new();
    for item in &mut group.items {
        if group.asking {
            pipeline.cmd("ASKING");
        }
        match item.command.script {
            Some(script) if (item.eval || durable.is_some()) && !loaded.iter().any(|known| ptr::eq(*known, script)) => {
                loaded.push(script);
                pipeline.add_command(item.command.as_eval(script));
            }
            _ => {
                pipeline.add_command(std::mem::take(&mut item.command.cmd));
            }
        }
    }
    if let (Some(durable), Some(marker)) = (durable, marker) {
        if group.asking {
            pipeline.cmd("ASKING");
        }
        pipeline.cmd("SET").arg(marker).arg(1).arg("PX").arg(MARKER_TTL_MS);
        let wait = inner.dedicated.wait(&group.node.addr, durable);
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        match durable.kept {
            Kept::ByReplicas(n) => pipeline.cmd("WAIT").arg(n).arg(wait).cmd("ROLE"),
            Kept::OnDisk => pipeline.cmd("WAITAOF").arg(1).arg(0).arg(wait),
        };
    }
    pipeline
}

/// Restores an item's command from the pipeline for another try.
fn restore_one(item: &mut Item, pipeline: &Pipeline, place: usize) {
    if item.command.cmd.args_iter().len() == 0 {
        item.command.cmd = pipeline.cmd_iter().nth(place).map_or_else(Cmd::new, Clone::clone);
    }
}

fn restore(group: &mut Group, pipeline: &Pipeline) {
    for (index, item) in group.items.iter_mut().enumerate() {
        restore_one(item, pipeline, place(index, group.asking));
    }
}

/// The index of an item's own command in the pipeline.
fn place(index: usize, asking: bool) -> usize {
    if asking { index * 2 + 1 } else { index }
}

fn judge_all(
    inner: &Inner,
    group: Group,
    pipeline: &Pipeline,
    mut values: Vec<Value>,
    durable: Option<Durability>,
) -> Landed {
    if let Some(Durability { kept: Kept::ByReplicas(_), .. }) = durable {
        let alone = values.pop().is_some_and(|role| has_no_replica(&role));
        inner.dedicated.note_replicas(&group.node.addr, !alone);
    }
    let replicas = if durable.is_some() { acknowledged(&mut values) } else { 0 };
    let mut landed = Landed { done: Vec::with_capacity(group.items.len()), ..Landed::default() };
    for (index, mut item) in group.items.into_iter().enumerate() {
        let place = place(index, group.asking);
        let value = values.get_mut(place).map_or(Value::Nil, |value| std::mem::replace(value, Value::Nil));
        let Value::ServerError(error) = value else {
            landed.done.push((item.at, Ok((value, replicas))));
            continue;
        };
        restore_one(&mut item, pipeline, place);
        let (code, detail) = (error.code(), error.details().unwrap_or_default());
        let why = || format!("{}: {code} {detail}", group.node.addr);
        match code {
            "MOVED" | "ASK" if inner.cluster => {
                let target = detail.split_ascii_whitespace().nth(1);
                match target.and_then(|target| NodeAddr::parse(target, &group.node.addr)) {
                    Some(addr) if code == "ASK" => item.ask = Some(inner.node(&addr)),
                    Some(addr) => {
                        landed.moved.push((slot_of(item.command.key()), addr));
                        landed.refresh = true;
                    }
                    None => landed.refresh = true,
                }
                soon(&mut landed, item.again(why()));
            }
            "NOSCRIPT" if item.command.script.is_some() => {
                item.eval = true;
                soon(&mut landed, item.again(why()));
            }
            // While a slot is moving, the old node may have to serve a command for it again.
            "TRYAGAIN" | "LOADING" | "BUSY" | "NOREPLICAS" | "MISCONF" | "OOM" => landed.later.push(item.again(why())),
            "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" => {
                landed.refresh = true;
                landed.later.push(item.again(why()));
            }
            _ => {
                let refused = StoreError::Server { code: code.to_owned(), message: detail.to_owned() };
                landed.done.push((item.at, Err(refused)));
            }
        }
    }
    landed
}

fn soon(landed: &mut Landed, item: Item) {
    if item.tries <= AT_ONCE { landed.now.push(item) } else { landed.later.push(item) }
}

/// Whether ROLE named a primary without replicas.
fn has_no_replica(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if matches!(parts.get(2), Some(Value::Array(replicas)) if replicas.is_empty()))
}

/// The number that WAIT returned, or WAITAOF for the node's own disk; zero if the marker before it could not be
/// written.
fn acknowledged(values: &mut Vec<Value>) -> usize {
    let said = match (values.pop(), values.pop()) {
        (Some(said), Some(Value::Okay)) => said,
        _ => return 0,
    };
    match said {
        Value::Int(count) => usize::try_from(count).unwrap_or(0),
        Value::Array(counts) => match counts.first() {
            Some(Value::Int(local)) => usize::try_from(*local).unwrap_or(0),
            _ => 0,
        },
        _ => 0,
    }
}
