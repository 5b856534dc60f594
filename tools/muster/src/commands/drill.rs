//! `muster drill`: proves the promises on a stack of its own, or on a compose stack by its state file, for a
//! person to watch and for a program to judge. `chaos` lets things go wrong at random and checks every job
//! afterwards.

mod attached;
mod bus;
mod chaos;
mod check;
mod hands;
mod judge;
mod ledger;
mod load;
mod places;
mod plan;
mod proxy;
mod reported;
mod rig;
mod scenes;
mod scratch;
mod verdict;

use clap::{Args, Subcommand};

use crate::{outcome::Failure, output::Format, target::Target};

/// Break a separate stack, or a compose stack (--state-file), and check the promises; without a name: list the drills
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Drill {
    /// Which drill to run
    name: Option<scenes::Name>,

    #[command(flatten)]
    stage: scenes::Stage,

    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand, Debug)]
enum What {
    Chaos(chaos::Chaos),
}

impl Drill {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        match (self.what, self.name) {
            (Some(What::Chaos(_)), _) if target.state_file.is_some() => {
                let failure = Failure::usage("chaos cuts connections and empties stores, so it needs a separate stack");
                Err(failure.hint("remove --state-file").into())
            }
            (Some(What::Chaos(chaos)), _) => chaos.run(format).await,
            (None, Some(name)) => self.stage.run(name, target.state_file.as_deref(), format).await,
            (None, None) => {
                scenes::list(format);
                Ok(())
            }
        }
    }
}
