//! `muster run`: start runs of workflows, follow them to their end, look into them and steer them. `start`, `wait` and
//! `watch` end with code 4 when they waited for a run that ended badly.

mod change;
mod filter;
mod list;
mod look;
mod show;
mod start;
mod watch;

use std::time::Duration;

use clap::Subcommand;

use super::{Caller, ended::What};
use crate::{
    api::{Answer, Call},
    outcome::Failure,
    output::{self, Format},
    spans,
};

#[derive(Subcommand, Debug)]
pub(crate) enum Run {
    Start(start::Start),
    List(list::List),
    /// Show a run and its steps
    Get {
        /// The run's id
        id: String,
    },
    Watch(watch::Watch),
    /// Wait until a run has ended; exit code 4 if it did not succeed
    Wait {
        /// The run's id
        id: String,
        /// Give up after this long
        #[arg(long, value_parser = spans::parse, value_name = "DURATION")]
        timeout: Option<Duration>,
    },
    /// Explain what a run waits for, and what happens next
    Explain {
        /// The run's id
        id: String,
    },
    /// Show what happened in a run, when and why
    Timeline {
        /// The run's id
        id: String,
    },
    Items(look::Items),
    Graph(look::Graph),
    Signal(change::Signal),
    /// Pause a run: what runs, runs on, and nothing new starts
    Pause {
        /// The run's id
        id: String,
    },
    /// Resume a paused run
    Resume {
        /// The run's id
        id: String,
    },
    Cancel(change::Cancel),
    /// Try the missing compensations of an ended run again
    Compensate {
        /// The run's id
        id: String,
    },
    Rerun(change::Rerun),
    Complete(change::Complete),
    Skip(change::Skip),
    Bulk(Box<change::Bulk>),
}

impl Run {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Run::Start(start) => start.run(caller).await,
            Run::List(list) => list.run(caller).await,
            Run::Get { id } => {
                shown(caller, &ask(caller, &Call::get(path(&id, "")?)).await?);
                Ok(())
            }
            Run::Watch(watch) => watch.run(caller).await,
            Run::Wait { id, timeout } => {
                let answer = What::Run.until_done(caller, checked(&id)?, timeout).await?;
                shown(caller, &answer);
                Ok(What::Run.judged(&answer.value)?)
            }
            Run::Explain { id } => look::at(caller, &path(&id, "/explain")?, show::explanation).await,
            Run::Timeline { id } => look::at(caller, &path(&id, "/timeline")?, show::timeline).await,
            Run::Items(items) => items.run(caller).await,
            Run::Graph(graph) => graph.run(caller).await,
            Run::Signal(signal) => signal.run(caller).await,
            Run::Pause { id } => change::plain(caller, &path(&id, "/pause")?).await,
            Run::Resume { id } => change::plain(caller, &path(&id, "/resume")?).await,
            Run::Cancel(cancel) => cancel.run(caller).await,
            Run::Compensate { id } => change::plain(caller, &path(&id, "/compensate")?).await,
            Run::Rerun(rerun) => rerun.run(caller).await,
            Run::Complete(complete) => complete.run(caller).await,
            Run::Skip(skip) => skip.run(caller).await,
            Run::Bulk(bulk) => bulk.run(caller).await,
        }
    }
}

async fn ask(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    caller.api.call(call).await.map_err(Failure::from)
}

fn shown(caller: &Caller, answer: &Answer) {
    match caller.format {
        Format::Json => output::line(&answer.text),
        Format::Table => show::run(&answer.value),
    }
}

/// Checks an id, because it becomes part of a path.
fn checked(id: &str) -> Result<&str, Failure> {
    match id.parse::<muster_domain::RunId>() {
        Ok(_) => Ok(id),
        Err(fault) => Err(Failure::usage(format!("{id:?} is not a run id")).hint(fault.to_string())),
    }
}

/// The path of a run, and of something behind it.
fn path(id: &str, rest: &str) -> Result<String, Failure> {
    Ok(format!("/runs/{}{rest}", checked(id)?))
}
