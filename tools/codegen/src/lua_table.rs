//! The state table as Lua: string constants indexed by byte, because a table literal is built on every call and costs
//! more than the rest of the script.

use std::fmt::Write;

use muster_domain::{
    Event, Outcome, Seen, State,
    job::{Due, birth, transition},
};

fn escaped(bytes: impl Iterator<Item = u8>) -> String {
    bytes.fold(String::new(), |mut text, b| {
        let _ = write!(text, "\\{b}");
        text
    })
}

/// A script gets only the constants that it names: each is a local, and Lua has room for 200.
pub(crate) fn render() -> String {
    let mut out = String::from(
        "-- @generated from crates/domain/src/job/state.rs by muster-codegen. Do not edit.\n\
         -- The state table: TABLE at (state - 1) * EVENTS + event is where it leads, 0 = illegal.\n",
    );
    let constants = |out: &mut String, names: Vec<(String, u8)>| {
        let (left, right): (Vec<_>, Vec<_>) = names.into_iter().map(|(n, c)| (n.to_uppercase(), c.to_string())).unzip();
        for (left, right) in left.chunks(7).zip(right.chunks(7)) {
            let _ = writeln!(out, "local {} = {}", left.join(", "), right.join(", "));
        }
    };
    constants(&mut out, State::ALL.iter().map(|s| (s.to_string(), s.code())).collect());
    constants(&mut out, Outcome::ALL.iter().map(|o| (o.to_string(), o.code())).collect());
    let used = [
        Event::Schedule,
        Event::Hold,
        Event::Dispatch,
        Event::Start,
        Event::Release,
        Event::CutShort,
        Event::TimeOut,
        Event::Cancel,
    ];
    constants(&mut out, used.iter().map(|e| (e.to_string(), e.code())).collect());

    let _ = writeln!(out, "local EVENTS = {}", Event::ALL.len());
    let next = State::ALL
        .iter()
        .filter(|s| !s.is_end())
        .chain(State::ALL.iter().filter(|s| s.is_end()))
        .flat_map(|&s| Event::ALL.iter().map(move |&e| transition(s, e).map_or(0, State::code)));
    let _ = writeln!(out, "local TABLE = '{}'", escaped(next));

    out.push_str("-- The state of a job that an event creates before its submit, 0 = it creates none.\n");
    let born = Event::ALL.iter().map(|&e| birth(e).map_or(0, State::code));
    let _ = writeln!(out, "local BORN = '{}'", escaped(born));

    out.push_str("-- What the caller of each event must have seen, and which moment must have come for it.\n");
    out.push_str("local BY_VERSION, BY_FENCE = 1, 2\n");
    let seen = |e: &Event| match e.seen() {
        Seen::Version => 1,
        Seen::Fence => 2,
        Seen::Any => 3,
    };
    let _ = writeln!(out, "local SEEN = '{}'", escaped(Event::ALL.iter().map(seen)));
    out.push_str(
        "local DUE_RUN_AT, DUE_LEASE_END, DUE_ATTEMPT_END, DUE_ANY_TIME_OUT, DUE_ANY_EXPIRY = 1, 2, 3, 4, 5\n",
    );
    let due = |e: &Event| match e.due() {
        Due::Always => 0,
        Due::RunAt => 1,
        Due::LeaseEnd => 2,
        Due::AttemptEnd => 3,
        Due::AnyTimeOut => 4,
        Due::AnyExpiry => 5,
    };
    let _ = writeln!(out, "local DUE = '{}'", escaped(Event::ALL.iter().map(due)));
    out
}
