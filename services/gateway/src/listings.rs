//! Limits how many requests that read many records run at once.
//!
//! Knows: how many listings, and how many awaited runs, one gateway reads at the same time. Promises: a burst of them
//! never occupies the gateway and its Redis connections so much that submits time out. Leaves to others: the rate of reads (`limits`).

use std::time::Duration;

use muster_domain::ProblemCode;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::problem::Problem;

/// The most listings that are read at the same time. Each may read 2,000 records.
const AT_A_TIME: usize = 8;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Grants turns in the order of the requests.
pub(crate) struct Listings(Semaphore);

impl Default for Listings {
    fn default() -> Listings {
        Listings(Semaphore::new(AT_A_TIME))
    }
}

impl Listings {
    /// Waits for a turn. Keep it while records are read, not while the answer is sent.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let turn = tokio::time::timeout(PATIENCE, self.0.acquire()).await;
        let busy = || Problem::new(ProblemCode::Overloaded, "too many large reads wait already; nothing was read");
        turn.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_listing_waits_for_its_turn_and_is_refused_when_none_comes() {
        let listings = Listings::default();
        let mut held = Vec::new();
        for _ in 0..AT_A_TIME {
            held.push(listings.turn().await.unwrap());
        }
        let refused = listings.turn().await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Overloaded);
        let (turn, ()) = tokio::join!(listings.turn(), async {
            tokio::time::sleep(PATIENCE / 2).await;
            held.pop();
        });
        assert!(turn.is_ok(), "a freed turn goes to the request that waits");
    }
}
