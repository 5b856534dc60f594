//! Limits the number of watchers, in all and for each tenant.

use std::{collections::HashMap, sync::Arc, time::Duration};

use muster_domain::{ProblemCode, Tenant};
use muster_telemetry::{Gauge, set};
use tokio::sync::watch;

use crate::problem::Problem;

/// The seats for watchers of one gateway.
pub(super) struct Seats {
    taken: Arc<watch::Sender<Taken>>,
    most: usize,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// The number of watchers of each tenant. Tenants without watchers have no entry.
    of: HashMap<Tenant, usize>,
}

/// The seat of one watcher. Dropping it frees the seat.
pub(super) struct Seat {
    taken: Arc<watch::Sender<Taken>>,
    tenant: Tenant,
}

impl Seats {
    /// Creates `most` seats.
    pub(super) fn new(most: usize) -> Seats {
        Seats { taken: Arc::default(), most }
    }

    /// Takes a seat for a watcher of this tenant, or refuses it.
    pub(super) fn enter(&self, tenant: &Tenant) -> Result<Seat, Problem> {
        let mut refused = None;
        self.taken.send_if_modified(|taken| {
            let own = taken.of.get(tenant).copied().unwrap_or(0);
            if taken.all >= self.most {
                refused = Some("too many watch events here; another gateway may do");
            } else if own >= self.share() {
                refused = Some("too many watch this tenant's events here; another gateway may do");
            } else {
                taken.all += 1;
                taken.of.insert(tenant.clone(), own + 1);
                set(Gauge::EventStreams, &[], taken.all as f64);
            }
            refused.is_none()
        });
        match refused {
            Some(why) => Err(Problem::new(ProblemCode::Overloaded, why)),
            None => Ok(Seat { taken: self.taken.clone(), tenant: tenant.clone() }),
        }
    }

    /// The most seats that one tenant may take.
    fn share(&self) -> usize {
        (self.most / 4).max(1)
    }

    /// Resolves when at least one seat is taken.
    pub(super) async fn taken(&self) {
        // The channel never closes: `self` holds the sender.
        let _ = self.taken.subscribe().wait_for(|taken| taken.all > 0).await;
    }

    /// Resolves when no seat has been taken for this long.
    pub(super) async fn empty_for(&self, long: Duration) {
        loop {
            let _ = self.taken.subscribe().wait_for(|taken| taken.all == 0).await;
            if tokio::time::timeout(long, self.taken()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.send_modify(|taken| {
            taken.all = taken.all.saturating_sub(1);
            set(Gauge::EventStreams, &[], taken.all as f64);
            let own = taken.of.remove(&self.tenant).unwrap_or(0);
            if own > 1 {
                taken.of.insert(self.tenant.clone(), own - 1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).expect("a name")
    }

    #[test]
    fn there_are_only_so_many_seats_and_each_is_free_again() {
        let seats = Seats::new(2);
        let (first, _second) = (seats.enter(&tenant("a")).unwrap(), seats.enter(&tenant("b")).unwrap());
        let refused = seats.enter(&tenant("c")).err().expect("no third");
        assert_eq!((refused.code, refused.status().as_u16()), (ProblemCode::Overloaded, 503));
        drop(first);
        assert!(seats.enter(&tenant("c")).is_ok());
    }

    #[test]
    fn one_tenant_has_a_quarter_of_the_seats_and_leaves_the_rest_to_others() {
        let seats = Seats::new(8);
        let mut own = vec![seats.enter(&tenant("a")).unwrap(), seats.enter(&tenant("a")).unwrap()];
        let refused = seats.enter(&tenant("a")).err().expect("no third");
        assert!(refused.detail.contains("this tenant's"), "{}", refused.detail);
        let _others: Vec<_> = ["b", "b", "c", "c", "d", "d"].map(|name| seats.enter(&tenant(name)).unwrap()).into();
        own.pop();
        own.push(seats.enter(&tenant("a")).unwrap());
        own.clear();
        assert!(!seats.taken.borrow().of.contains_key(&tenant("a")), "who has left is forgotten");
    }
}
