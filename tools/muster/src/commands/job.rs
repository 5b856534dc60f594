//! `muster job`: submit jobs, read them, follow them to their end. `submit`, `wait` and `watch`
//! end with code 4 when they waited for a job that ended badly.

mod list;
mod show;
mod submit;
mod wait;
mod watch;

use clap::Subcommand;
use serde_json::json;

use super::{Caller, operation::Selection};
use crate::{
    api::{Answer, Call},
    outcome::Failure,
    output::{self, Format},
};

#[derive(Subcommand, Debug)]
pub(crate) enum Job {
    Submit(Box<submit::Submit>),
    /// Show a job
    Get {
        /// The job's id
        id: String,
    },
    List(list::List),
    /// Cancel a job
    Cancel {
        /// The job's id
        id: String,
        /// Reason
        #[arg(long)]
        reason: Option<String>,
    },
    Retry(submit::Retry),
    Wait(wait::Wait),
    Watch(watch::Watch),
    /// Show every step of a job
    History {
        /// The job's id
        id: String,
    },
    /// Explain why a job is in its state, and what happens next
    Explain {
        /// The job's id
        id: String,
    },
    /// Cancel, retry or delete every job that matches
    Bulk {
        /// The action
        #[arg(value_parser = ["retry", "cancel", "delete"])]
        action: String,
        #[command(flatten)]
        selection: Box<Selection>,
    },
    /// Delete a job that has ended
    Delete {
        /// The job's id
        id: String,
    },
}

impl Job {
    pub(crate) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        match self {
            Job::Submit(submit) => submit.run(caller).await,
            Job::Get { id } => {
                shown(caller, &ask(caller, &Call::get(format!("/jobs/{}", checked(&id)?))).await?);
                Ok(())
            }
            Job::List(list) => list.run(caller).await,
            Job::Cancel { id, reason } => {
                let body = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
                let call = Call::post(format!("/jobs/{}/cancel", checked(&id)?), body.to_string()).repeatable();
                shown(caller, &ask(caller, &call).await?);
                Ok(())
            }
            Job::Retry(retry) => retry.run(caller).await,
            Job::Wait(wait) => wait.run(caller).await,
            Job::Watch(watch) => watch.run(caller).await,
            Job::History { id } => {
                let answer = ask(caller, &Call::get(format!("/jobs/{}/history", checked(&id)?))).await?;
                match caller.format {
                    Format::Json => output::line(answer.text),
                    Format::Table => show::history(&answer.value),
                }
                Ok(())
            }
            Job::Explain { id } => {
                let answer = ask(caller, &Call::get(format!("/jobs/{}/explain", checked(&id)?))).await?;
                match caller.format {
                    Format::Json => output::line(answer.text),
                    Format::Table => show::explanation(&answer.value),
                }
                Ok(())
            }
            Job::Bulk { action, selection } => selection.run(&action, caller).await,
            Job::Delete { id } => {
                ask(caller, &Call::delete(format!("/jobs/{}", checked(&id)?))).await?;
                output::line(format_args!("job {id} is gone"));
                Ok(())
            }
        }
    }
}

async fn ask(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    caller.api.call(call).await.map_err(Failure::from)
}

fn shown(caller: &Caller, answer: &Answer) {
    match caller.format {
        Format::Json => output::line(&answer.text),
        Format::Table => show::job(&answer.value),
    }
}

/// Checks an id, because it becomes part of a path.
fn checked(id: &str) -> Result<&str, Failure> {
    match id.parse::<muster_domain::JobId>() {
        Ok(_) => Ok(id),
        Err(fault) => Err(Failure::usage(format!("{id:?} is not a job id")).hint(fault.to_string())),
    }
}
