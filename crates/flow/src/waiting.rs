//! Counts the waiting jobs of a topic, over all of its lines: in their backlogs, and on the bus.
//!
//! A topic's jobs wait in one line, or in several lines if some jobs have requirements. Every noted line is counted, up
//! to [`muster_store::MOST_LINES`]. The number of calls grows with the number of lines, never with the number of
//! waiting jobs. This module only reads. Other modules decide which jobs a pause or a limit holds back.

use futures_util::future::join_all;
use muster_bus::BusError;
use muster_domain::{Line, Tenant, Topic, WorkerId, line::provides};
use muster_store::{StoreError, TopicLine, WorkerSeen};

use crate::Flow;

/// How many topics the bus is asked about at one time.
const AT_ONCE: usize = 16;

/// A line, and the number of jobs that wait in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineWaiting {
    /// The line, and what its jobs require.
    pub known: TopicLine,
    /// Jobs in the line's backlog.
    pub queued: u64,
    /// Messages with offers on the bus; none if the bus did not answer.
    pub offered: Option<u64>,
}

/// The number of jobs that wait in several lines together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Jobs in the lines' backlogs.
    pub queued: u64,
    /// Messages with offers on the bus; none if the bus did not answer for every line.
    pub offered: Option<u64>,
}

impl Waits {
    /// The sum over these lines.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a LineWaiting>) -> Waits {
        lines.into_iter().fold(Waits { queued: 0, offered: Some(0) }, |sum, line| Waits {
            queued: sum.queued + line.queued,
            offered: sum.offered.zip(line.offered).map(|(sum, more)| sum + more),
        })
    }

    /// The sum over the lines that further workers of the same kind as the live workers could serve. A line that no
    /// live worker can serve would not move with more of the same. If the topic has no live worker, all lines count,
    /// because a worker of any kind may come.
    pub fn worth_workers(lines: &[LineWaiting], live: &[&WorkerSeen]) -> Waits {
        Waits::of(lines.iter().filter(|line| live.is_empty() || live.iter().any(|worker| line.fits(worker))))
    }

    /// Queued jobs plus offers.
    pub fn sum(&self) -> u64 {
        self.queued + self.offered.unwrap_or(0)
    }
}

impl LineWaiting {
    /// Whether this worker of the topic may run the line's jobs.
    fn fits(&self, worker: &WorkerSeen) -> bool {
        let name = WorkerId::trusted(worker.id.as_str());
        provides(name.own_name(), &worker.labels, &self.known.requires)
    }
}

impl Flow {
    /// Counts the waiting jobs of each of these topics, line by line, the line without requirements first. The counts
    /// are not one atomic snapshot: a job that moves in between may be counted or not.
    pub async fn waiting(&self, topics: &[(Tenant, Topic)]) -> Result<Vec<Vec<LineWaiting>>, StoreError> {
        let known = self.store.lines_of(topics).await?;
        self.waiting_in(topics, known).await
    }

    /// The same for lines that the caller has already read.
    pub async fn waiting_in(
        &self,
        topics: &[(Tenant, Topic)],
        known: Vec<Vec<TopicLine>>,
    ) -> Result<Vec<Vec<LineWaiting>>, StoreError> {
        let of_tenant = |((tenant, _), lines): (&(Tenant, Topic), &Vec<TopicLine>)| -> Vec<(Tenant, Line)> {
            lines.iter().map(|known| (tenant.clone(), known.line.clone())).collect()
        };
        let all: Vec<(Tenant, Line)> = topics.iter().zip(&known).flat_map(of_tenant).collect();
        let (lengths, offers) = tokio::join!(self.store.queue_lens(&all), self.offers_of(topics, &known));
        let mut lengths = lengths?.into_iter();
        let waiting = known.into_iter().zip(offers).map(|(lines, offers)| {
            let line = |(n, known)| {
                let offered = offers.as_ref().ok().and_then(|offers| offers.get(n).copied());
                LineWaiting { known, queued: lengths.next().unwrap_or(0), offered }
            };
            lines.into_iter().enumerate().map(line).collect()
        });
        Ok(waiting.collect())
    }

    async fn offers_of(&self, topics: &[(Tenant, Topic)], known: &[Vec<TopicLine>]) -> Vec<Result<Vec<u64>, BusError>> {
        let all: Vec<_> = topics.iter().zip(known).collect();
        let mut offers = Vec::with_capacity(all.len());
        for some in all.chunks(AT_ONCE) {
            let asked = some.iter().map(async |((tenant, topic), lines)| {
                let lines: Vec<&Line> = lines.iter().map(|known| &known.line).collect();
                self.bus.line_counts(tenant, topic, &lines).await
            });
            offers.extend(join_all(asked).await);
        }
        offers
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::Labels;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn waiting(requires: &[(&str, &str)], queued: u64, offered: Option<u64>) -> LineWaiting {
        let (topic, requires) = (Topic::parse("render").unwrap(), labels(requires));
        LineWaiting { known: TopicLine { line: Line::of(&topic, &requires), requires, noted: None }, queued, offered }
    }

    fn worker(id: &str, provides: &[(&str, &str)]) -> WorkerSeen {
        WorkerSeen { id: id.to_owned(), labels: labels(provides), ..WorkerSeen::default() }
    }

    #[test]
    fn a_line_that_no_live_worker_fits_is_worth_none_of_them() {
        let lines = [
            waiting(&[], 1, Some(10)),
            waiting(&[("gpu", "a100")], 2, Some(20)),
            waiting(&[("worker", "w9")], 4, Some(40)),
        ];
        let (plain, gpu, named) = (worker("w1", &[]), worker("w2", &[("gpu", "a100")]), worker("w9", &[]));
        for (live, queued) in [
            (vec![], 7),
            (vec![&plain], 1),
            (vec![&plain, &gpu], 3),
            (vec![&plain, &named], 5),
            (vec![&plain, &gpu, &named], 7),
        ] {
            let waits = Waits::worth_workers(&lines, &live);
            assert_eq!(waits, Waits { queued, offered: Some(queued * 10) }, "{live:?}");
        }
    }

    #[test]
    fn a_bus_that_was_silent_about_one_line_leaves_the_number_out() {
        let lines = [waiting(&[], 1, Some(10)), waiting(&[("gpu", "a100")], 2, None)];
        assert_eq!(Waits::of(&lines), Waits { queued: 3, offered: None });
        assert_eq!(Waits::of(&lines).sum(), 3);
    }
}
