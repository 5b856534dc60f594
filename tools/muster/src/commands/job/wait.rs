//! Waits for a job to end.

use std::time::Duration;

use clap::Args;

use super::{Caller, checked, shown};
use crate::{commands::ended::What, spans};

/// Wait until a job has ended; exit code 4 if it did not succeed
#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The job's id
    id: String,

    /// Give up after this long
    #[arg(long, value_parser = spans::parse, value_name = "DURATION")]
    timeout: Option<Duration>,
}

impl Wait {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let answer = What::Job.until_done(caller, checked(&self.id)?, self.timeout).await?;
        shown(caller, &answer);
        Ok(What::Job.judged(&answer.value)?)
    }
}
