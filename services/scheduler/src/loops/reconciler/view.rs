//! The state of the bus during one pass. Each subject is asked about once, and only if a job depends on it. From the
//! answer "unknown" nothing follows.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use muster_bus::subjects;
use muster_domain::{
    JobId, Line, Phase, Tenant, Time,
    job::{BusView, DISPATCHED_LOOK, Known, PENDING_LOOK},
};
use muster_store::Record;

use crate::{context::Context, pulse::ECHO};

/// The answers of one pass.
pub(super) struct View<'a> {
    context: &'a Context,
    submits: Option<Known>,
    offers: HashMap<(Tenant, Line), Known>,
    asked_results: bool,
    answers: Option<bool>,
}

/// How long the bus may take to answer before it counts as silent: as long as an echo may take, and a little more. A bus
/// that is slow for all replicas is slow, and not silent.
const ANSWERS_WITHIN: Duration = ECHO.saturating_add(Duration::from_millis(500));
/// The same while the pulses of this replica do not come back: then a pass hardly waits.
const ANSWERS_IN_SILENCE: Duration = Duration::from_millis(200);

impl<'a> View<'a> {
    pub(super) fn new(context: &'a Context) -> View<'a> {
        View { context, submits: None, offers: HashMap::new(), asked_results: false, answers: None }
    }

    /// The answers that this job's check needs.
    pub(super) async fn of(&mut self, record: &Record, now: Time) -> BusView {
        let mut view = BusView { submits: Known::Unknown, offers: Known::Unknown, silence_unproven_until: None };
        let head = &record.head;
        match &head.phase {
            Phase::Pending { .. } if (head.since + PENDING_LOOK).reached(now) => view.submits = self.submits().await,
            Phase::Dispatched if (head.since + DISPATCHED_LOOK).reached(now) => {
                view.offers = self.offers(&record.spec.tenant, record.spec.line()).await;
                if !record.spec.requires.is_empty() {
                    // A new scheduler creates the route, and announces it to the workers.
                    let spec = &record.spec;
                    let _ = self.context.routes.route_for(spec.tenant.as_str(), spec.topic.as_str(), &spec.requires);
                }
            }
            Phase::Running { lease, .. } if lease.until.reached(now) => {
                // Longer than one lease if the lease was extended, never shorter.
                let span = lease.until.since(head.since);
                view.silence_unproven_until = self.silence_unproven_until(record.id, lease.until, span, now).await;
            }
            _ => {}
        }
        view
    }

    /// Whether the bus answers this replica. If it does not, no job may become pending here: its submit would not be
    /// published, and another replica takes it for lost only after [`PENDING_LOOK`].
    pub(super) async fn bus_answers(&mut self) -> bool {
        match self.answers {
            Some(answers) => answers,
            None => {
                let silent = self.context.fitness.is_nats_silent();
                let within = if silent { ANSWERS_IN_SILENCE } else { ANSWERS_WITHIN };
                *self.answers.insert(self.context.bus().ping(within).await.is_ok())
            }
        }
    }

    async fn submits(&mut self) -> Known {
        match self.submits {
            Some(known) => known,
            None => *self.submits.insert(self.context.bus().oldest_unhandled_submit().await),
        }
    }

    async fn offers(&mut self, tenant: &Tenant, line: Line) -> Known {
        let subject = subjects::offer(tenant, &line);
        let key = (tenant.clone(), line);
        if let Some(known) = self.offers.get(&key) {
            return *known;
        }
        let known = self.context.bus().oldest(&subject).await;
        self.offers.insert(key, known);
        known
    }

    async fn silence_unproven_until(&mut self, job: JobId, lease_end: Time, span: Duration, now: Time) -> Option<Time> {
        let lease_guard = &self.context.lease_guard;
        if !self.asked_results {
            self.asked_results = true;
            // Taken before the question, so that the answer includes every result on the stream at this time.
            let here = Instant::now();
            match self.context.bus().results_mark().await {
                Ok(mark) => lease_guard.results(&mark, here),
                Err(_) => lease_guard.bus(false, Instant::now()),
            }
        }
        let node = self.context.store().node_of(job);
        lease_guard.unproven_until(node.as_ref(), lease_end, span, now, Instant::now())
    }
}
