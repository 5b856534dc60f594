//! `muster run watch`: follows a run to its end. Events only say when to look: what is shown is always read from the run,
//! so that a lost event or a key that sees no events of runs costs a moment and nothing else.
//!
//! On a terminal the steps are drawn as a list that changes in place (`live`); otherwise every change is a line
//! (`changes`).

mod changes;
mod live;

use std::{io::IsTerminal, time::Duration};

use clap::Args;
use muster_domain::time::wall_clock;
use muster_sdk::sse::Frames;
use reqwest::Response;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use self::{changes::Changes, live::Live};
use super::{Caller, ask, path, show};
use crate::{
    api::Call,
    commands::ended::What,
    output::{self, Format},
    signals::StopSignals,
};

/// How often the run is read without an event.
const LOOK: Duration = Duration::from_secs(2);
/// The shortest time between two looks: what happens within it is shown together.
const PACE: Duration = Duration::from_millis(200);

/// Watch a run until it ends; exit code 4 if it did not succeed
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The run's id
    id: String,
}

impl Watch {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let path = path(&self.id, "")?;
        let mut signals = StopSignals::listen()?;
        tokio::select! {
            watched = self.watch(caller, &path) => watched,
            () = signals.next() => Ok(()),
        }
    }

    async fn watch(&self, caller: &Caller, path: &str) -> anyhow::Result<()> {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let mut screen = match caller.format {
            Format::Table if terminal => Screen::Live(Live::new()),
            format => Screen::Lines(Changes::default(), format),
        };
        let mut news = News::of(caller, &self.id);
        loop {
            let run = ask(caller, &Call::get(path)).await?.value;
            if screen.show(&run).is_err() {
                return Ok(());
            }
            if run["done"] == true {
                screen.end(&run);
                return Ok(What::Run.judged(&run)?);
            }
            news.next().await;
        }
    }
}

enum Screen {
    Live(Live),
    Lines(Changes, Format),
}

impl Screen {
    fn show(&mut self, run: &Value) -> std::io::Result<()> {
        match self {
            Screen::Live(live) => {
                live.draw(run);
                Ok(())
            }
            Screen::Lines(changes, format) => {
                changes.since(run, &wall_clock().rfc3339()).iter().try_for_each(|change| match format {
                    Format::Json => output::try_line(change),
                    Format::Table => output::try_line(changes::line(change)),
                })
            }
        }
    }

    /// Leaves the run as it ended on the terminal.
    fn end(&mut self, run: &Value) {
        if let Screen::Live(live) = self {
            live.clear();
            show::run(run);
        }
    }
}

/// The events of the run, from any gateway.
struct News<'a> {
    caller: &'a Caller,
    call: Call,
    open: Option<Response>,
    frames: Frames,
}

impl<'a> News<'a> {
    fn of(caller: &'a Caller, id: &str) -> News<'a> {
        let call = Call::follow("/events", None).query("run_id", id);
        News { caller, call, open: None, frames: Frames::default() }
    }

    /// Waits until something may have happened.
    async fn next(&mut self) {
        let look = Instant::now() + LOOK;
        let Some(stream) = &mut self.open else {
            // What happened before the connection was open is not reported on it: look at once.
            match timeout_at(look, self.caller.api.open(&self.call)).await.map_err(drop) {
                Ok(Ok(stream)) => {
                    self.frames.begin();
                    self.open = Some(stream);
                }
                Ok(Err(_)) | Err(()) => sleep_until(look).await,
            }
            return;
        };
        loop {
            match timeout_at(look, stream.chunk()).await {
                Ok(Ok(Some(bytes))) => self.frames.feed(&bytes),
                Ok(Ok(None) | Err(_)) => {
                    self.open = None;
                    self.caller.api.turn_away();
                    return sleep(PACE).await;
                }
                Err(_) => return,
            }
            if self.frames.any(|frame| !frame.data.is_empty()) {
                return sleep(PACE).await;
            }
        }
    }
}
