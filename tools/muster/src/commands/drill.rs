//! `muster drill`: proves the promises on a stack of its own, for a person to watch and for a
//! program to judge. `chaos` lets things go wrong at random and checks every job afterwards.

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
mod rig;
mod scenes;
mod scratch;
mod told;
mod verdict;

use clap::{Args, Subcommand};

use crate::output::Format;

/// Prove the promises on a stack of its own; without a name: list what there is
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
    pub(crate) async fn run(self, format: Format) -> anyhow::Result<()> {
        match (self.what, self.name) {
            (Some(What::Chaos(chaos)), _) => chaos.run(format).await,
            (None, Some(name)) => self.stage.run(name, format).await,
            (None, None) => {
                scenes::list(format);
                Ok(())
            }
        }
    }
}
