//! The load of a bench: jobs submitted by many connections at once. Every request has its
//! idempotency keys, so that one whose answer was lost is repeated and still makes its jobs once.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use anyhow::Context;
use futures_util::future::try_join_all;
use muster_domain::JobId;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    api::{Api, Call},
    outcome::Failure,
};

/// What to submit.
pub(super) struct Load<'a> {
    pub(super) jobs: u64,
    pub(super) batch: u64,
    pub(super) connections: u16,
    pub(super) topic: &'a str,
}

impl Load<'_> {
    /// Submits all of it and gives the ids of the accepted jobs. A refused job ends the bench.
    pub(super) async fn submit(&self, api: &Api) -> anyhow::Result<HashSet<JobId>> {
        let doors = api.each();
        let run = Uuid::new_v4().simple().to_string();
        let next = Cell::new(0);
        let accepted = RefCell::new(HashSet::with_capacity(usize::try_from(self.jobs)?));
        let (run, next, accepted_ref) = (&run, &next, &accepted);
        let connection = |n: usize| {
            let door = &doors[n % doors.len()];
            async move {
                while next.get() < self.jobs {
                    let from = next.get();
                    let to = (from + self.batch).min(self.jobs);
                    next.set(to);
                    let ids = if self.batch == 1 {
                        self.one(door, run, from).await?
                    } else {
                        self.many(door, run, from, to).await?
                    };
                    accepted_ref.borrow_mut().extend(ids);
                }
                anyhow::Ok(())
            }
        };
        try_join_all((0..usize::from(self.connections)).map(connection)).await?;
        Ok(accepted.into_inner())
    }

    async fn one(&self, api: &Api, run: &str, n: u64) -> anyhow::Result<Vec<JobId>> {
        let body = format!(r#"{{"topic":"{}"}}"#, self.topic);
        let call = Call::post("/jobs", body).idempotency_key(format!("{run}-{n}"));
        let answer = api.call(&call).await.map_err(Failure::from)?;
        Ok(vec![id(&answer.value)?])
    }

    async fn many(&self, api: &Api, run: &str, from: u64, to: u64) -> anyhow::Result<Vec<JobId>> {
        let item = |n: u64| format!(r#"{{"topic":"{}","idempotency_key":"{run}-{n}"}}"#, self.topic);
        let items: Vec<String> = (from..to).map(item).collect();
        let call = Call::post("/jobs/batch", format!(r#"{{"items":[{}]}}"#, items.join(","))).repeatable();
        let answer = api.call(&call).await.map_err(Failure::from)?;
        let said = answer.value["items"].as_array().context("the answer has no items")?;
        said.iter().map(|item| id(&item["job"]).with_context(|| format!("refused: {item}"))).collect()
    }
}

fn id(job: &Value) -> anyhow::Result<JobId> {
    let id = job["id"].as_str().context("the answer names no job")?;
    id.parse().map_err(|fault| anyhow::anyhow!("{id:?}: {fault}"))
}
