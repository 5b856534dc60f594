//! Everything that `muster bench` can measure, as one list: the names, the set of each scenario, and how it is run. A
//! new scenario is a variant here, an arm in `place`, and an arm where it is measured: `on_reference`, `on_stack` or
//! `alone`.

mod alone;
mod growth;

use std::{path::Path, time::Duration};

use clap::ValueEnum;

use super::{
    figures::{Figures, Rounds},
    open_loop::OpenLoop,
    reference::{APALIS, APALIS_BARE, BULLMQ, Reference},
    rig::{Crew, Rig},
    stretch::{Stretch, share},
};

/// The number of jobs for every queue, Muster and the others: some of them slow down as their lists grow.
const ALIKE: u64 = 60_000;

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Set {
    /// What the targets ask for, in under 15 minutes
    #[default]
    Standard,
    /// Everything, in under an hour
    Full,
}

/// Where a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the Redis of the references, in every round.
    Reference,
    /// On a new stack that the scenarios of a round share.
    Round,
    /// Once, on a stack of its own.
    Alone,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Scenario {
    /// `redis-benchmark -t set -c 50`
    Set,
    /// apalis-redis by its defaults, end to end and drained
    ApalisRedis,
    /// apalis-redis with locks and events off
    ApalisRedisBare,
    /// bullmq-official, end to end and drained, and at 200/s
    BullmqOfficial,
    /// Single submits on 256 connections, end to end
    Single,
    /// Bulk submits of 100, end to end
    #[value(name = "bulk-100")]
    Bulk100,
    /// Bulk submits of 1,000, end to end
    #[value(name = "bulk-1000")]
    Bulk1000,
    /// A backlog of 200,000, and its bytes in Redis
    Drain,
    /// Single submits, workers over HTTP
    HttpWorkers,
    /// Open loop at 200/s
    #[value(name = "latency-200")]
    Latency200,
    /// Open loop at 2,000/s
    #[value(name = "latency-2000")]
    Latency2000,
    /// Open loop at 70 % of the peak
    LatencyHigh,
    /// CPU of a stack with one worker and nothing to do
    Idle,
    /// Cost of a job behind 1,000, 100,000 and 1,000,000 others
    Growth,
    /// Cost of a job after 1,000,000 others
    Finished,
    /// Both stores clustered, three replicas of each stream
    Cluster,
    /// One replica of each service
    #[value(name = "replicas-1")]
    Replicas1,
    /// Three replicas of each service
    #[value(name = "replicas-3")]
    Replicas3,
    /// Ten topics
    #[value(name = "topics-10")]
    Topics10,
    /// A thousand topics
    #[value(name = "topics-1000")]
    Topics1000,
    /// Ten workers
    #[value(name = "workers-10")]
    Workers10,
    /// A thousand workers
    #[value(name = "workers-1000")]
    Workers1000,
}

use Scenario as S;

impl Scenario {
    /// The name in figures and on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it measures, in a few words.
    pub(super) fn about(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    /// The scenarios of a set, in the order in which they run.
    pub(super) fn of(set: Set) -> Vec<Scenario> {
        S::value_variants().iter().copied().filter(|scenario| set == Set::Full || scenario.is_standard()).collect()
    }

    fn is_standard(self) -> bool {
        !matches!(
            self,
            S::Finished | S::Replicas1 | S::Replicas3 | S::Topics10 | S::Topics1000 | S::Workers10 | S::Workers1000
        )
    }

    /// Where it runs.
    pub(super) fn place(self) -> Place {
        match self {
            S::Set | S::ApalisRedis | S::ApalisRedisBare | S::BullmqOfficial => Place::Reference,
            S::Single | S::Bulk100 | S::Bulk1000 | S::Drain | S::HttpWorkers | S::Latency200 => Place::Round,
            _ => Place::Alone,
        }
    }

    /// Whether it measures another queue, whose driver has to be built.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, S::ApalisRedis | S::ApalisRedisBare | S::BullmqOfficial)
    }

    /// Measures a reference; `None` if its driver was not built.
    pub(super) async fn on_reference(self, reference: &Reference, scale: f64) -> anyhow::Result<Option<Figures>> {
        match self {
            S::Set => reference.set().await.map(Some),
            S::ApalisRedis => reference.peer(&APALIS, share(ALIKE, scale)).await,
            S::ApalisRedisBare => reference.peer(&APALIS_BARE, share(ALIKE, scale)).await,
            S::BullmqOfficial => {
                let Some(mut figures) = reference.peer(&BULLMQ, share(ALIKE, scale)).await? else { return Ok(None) };
                if let Some(latency) = reference.peer_latency(&BULLMQ, 200, 8).await? {
                    figures.extend(latency);
                }
                Ok(Some(figures))
            }
            _ => Ok(None),
        }
    }

    /// Measures on an existing stack.
    pub(super) async fn on_stack(self, rig: &Rig, scale: f64) -> anyhow::Result<Figures> {
        let stretch = match self {
            S::Bulk100 => Stretch { jobs: 100_000, batch: 100, connections: 16, ..Stretch::default() },
            S::Bulk1000 => Stretch { jobs: 100_000, batch: 1000, connections: 4, ..Stretch::default() },
            S::HttpWorkers => {
                let crew = Crew { processes: 4, http: true, ..Crew::default() };
                Stretch { jobs: 30_000, crew, ..Stretch::default() }
            }
            S::Drain => {
                let backlog = Stretch { jobs: 200_000, batch: 1000, connections: 4, ..Stretch::default() };
                return backlog.scaled(scale).drain(rig).await?.exact();
            }
            S::Latency200 => {
                let load = OpenLoop { rate: 200.0, lasts: Duration::from_secs(10) };
                return load.run(rig).await?.exact();
            }
            _ => Stretch { jobs: ALIKE, ..Stretch::default() },
        };
        stretch.scaled(scale).end_to_end(rig).await?.exact()
    }

    /// Measures on stacks of its own, in as many rounds as requested if that is useful, and adds the figures.
    pub(super) async fn alone(self, found: &mut Rounds, rounds: u32, scale: f64) -> anyhow::Result<()> {
        alone::run(self, found, rounds, scale).await
    }
}

/// Whether the drivers of the peers were built.
pub(super) fn peers_built(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| folder.join("peer-bullmq").is_file() && folder.join("peer-apalis").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_set_has_every_scenario_that_a_target_names() {
        let standard = S::of(Set::Standard);
        for needed in [S::Set, S::ApalisRedis, S::ApalisRedisBare, S::BullmqOfficial, S::Single, S::Bulk100, S::Drain] {
            assert!(standard.contains(&needed), "{needed:?}");
        }
        assert_eq!(S::of(Set::Full).len(), S::value_variants().len());
        assert!(S::value_variants().iter().all(|scenario| !scenario.about().is_empty()));
        assert_eq!(S::Bulk1000.name(), "bulk-1000");
    }
}
