//! The loops of a service as it declares them. Their settings and the docs are derived from here; `/loops` shows the
//! same constants for a running loop.

use std::{fmt::Write, marker::PhantomData, time::Duration};

use super::{Loop, Safety};
use crate::settings::{COMMON, Declaration, Setting, duration_text, loop_interval, usual};

/// A loop of a service.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    name: &'static str,
    safe: Safety,
    budget: Duration,
    interval: Setting<Duration>,
}

impl Declared {
    /// The declaration of this loop.
    pub const fn of<L: Loop>() -> Declared {
        Declared { name: L::NAME, safe: L::SAFE, budget: L::BUDGET, interval: interval::<L>() }
    }

    /// The setting of the loop's interval.
    pub const fn interval(&self) -> Setting<Duration> {
        self.interval
    }
}

/// The setting of a loop's interval: `MUSTER_LOOP_<WORD>_INTERVAL`.
pub const fn interval<L: Loop>() -> Setting<Duration> {
    loop_interval(Spelled::<L>::KEY.text(), Spelled::<L>::ENV.text(), L::EVERY)
}

/// The names of the setting of a loop's interval, built at compile time.
struct Spelled<L>(PhantomData<L>);

impl<L: Loop> Spelled<L> {
    const KEY: &'static Letters = &Letters::spell("loop_", L::SETTING, "_interval");
    const ENV: &'static Letters = &Letters::spell("MUSTER_LOOP_", L::SETTING, "_INTERVAL").upper();
}

/// A text of up to [`ROOM`] bytes.
struct Letters {
    bytes: [u8; ROOM],
    len: usize,
}

const ROOM: usize = 96;

impl Letters {
    /// Joins the three parts, with spaces as underscores.
    const fn spell(start: &str, word: &str, end: &str) -> Letters {
        Letters { bytes: [0; ROOM], len: 0 }.and(start).and(word).and(end)
    }

    const fn and(mut self, part: &str) -> Letters {
        let (part, mut n) = (part.as_bytes(), 0);
        while n < part.len() {
            self.bytes[self.len] = if part[n] == b' ' { b'_' } else { part[n] };
            self.len += 1;
            n += 1;
        }
        self
    }

    const fn upper(mut self) -> Letters {
        self.bytes.make_ascii_uppercase();
        self
    }

    const fn text(&'static self) -> &'static str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => panic!("a loop's word in settings is ASCII"),
        }
    }
}

/// The service's own list, then the intervals of its loops. `N` is the length of both.
pub const fn with_loops<const N: usize>(own: &[Declaration], loops: &[Declared]) -> [Declaration; N] {
    assert!(own.len() + loops.len() == N, "N is the number of own settings and loops");
    let (mut all, mut n) = ([COMMON[0]; N], 0);
    while n < N {
        all[n] = if n < own.len() { own[n] } else { loops[n - own.len()].interval().declaration() };
        n += 1;
    }
    all
}

/// A service's loops as a table for the docs.
pub fn reference(service: &str, loops: &[Declared]) -> String {
    let mut text = format!(
        "## {service}\n\n| loop | class | lock | safe with any number of replicas, because | a duplicate costs | interval | budget |\n|---|---|---|---|---|---|---|\n"
    );
    for it in loops {
        let lock = it.safe.lock().map_or("none".to_owned(), |lock| format!("`{lock}`"));
        let (class, why, costs) = (it.safe.class(), it.safe.why(), it.safe.duplicate_costs());
        let setting = it.interval.declaration();
        let (every, budget) = (format!("{} (`{}`)", usual(&setting), setting.env), duration_text(it.budget));
        let _ = writeln!(text, "| {} | {class} | {lock} | {why} | {costs} | {every} | `{budget}` |", it.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::{Budget, Counts};

    struct Named;

    impl Loop for Named {
        const NAME: &'static str = "audit relay";
        const SAFE: Safety = Safety::Idempotent { why: "it does nothing", duplicate_costs: "nothing" };
        const EVERY: &'static str = "90s";
        type Lease = ();

        async fn run_once(&mut self, (): &(), _: Budget) -> anyhow::Result<Counts> {
            Ok(Counts::none())
        }
    }

    #[test]
    fn the_setting_of_an_interval_is_named_after_the_loop() {
        let setting = interval::<Named>().declaration();
        assert_eq!((setting.key, setting.env), ("loop_audit_relay_interval", "MUSTER_LOOP_AUDIT_RELAY_INTERVAL"));
        let row = reference("muster-test", &[Declared::of::<Named>()]);
        assert!(row.contains("| `90s` (`MUSTER_LOOP_AUDIT_RELAY_INTERVAL`) |"), "{row}");
    }
}
