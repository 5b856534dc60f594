//! A scan over all stored runs that finds those without a home: a failover can lose a home and keep the run.

use std::collections::{BTreeSet, VecDeque};

use muster_domain::RunId;
use redis::Value;

use crate::{
    HomeKind, Store, StoreError,
    homes::text,
    keys,
    router::{Command, NodeAddr},
    script::{list, number},
};

/// The progress of a scan over all primaries. If it is lost, the scan is repeated.
#[derive(Debug, Default)]
pub struct RunScan {
    /// The primaries that are left; none before the scan has begun.
    nodes: Option<VecDeque<NodeAddr>>,
    cursor: u64,
}

impl Store {
    /// The runs of the next page, of about `count` keys, that have no home; none once all primaries were scanned. A run
    /// that is created or ends meanwhile may be named. Changes nothing. After an error the same page is read again.
    pub async fn homeless_runs(&self, scan: &mut RunScan, count: usize) -> Result<Option<Vec<RunId>>, StoreError> {
        if scan.nodes.is_none() {
            scan.nodes = Some(self.router().primaries().await?.into());
        }
        let Some(node) = scan.nodes.as_ref().and_then(|nodes| nodes.front()).cloned() else { return Ok(None) };
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(scan.cursor).arg("MATCH").arg(keys::ALL_RUNS).arg("COUNT").arg(count);
        let Value::Array(reply) = self.router().call_node(&node, &cmd).await? else {
            return Err(StoreError::Decode("SCAN".into()));
        };
        let [cursor, found] = <[Value; 2]>::try_from(reply).map_err(|_| StoreError::Decode("SCAN".into()))?;
        let ids: BTreeSet<RunId> = list(found)?.iter().filter_map(|key| keys::run_of(key)).collect();
        let ask = |id: &RunId| {
            let key = keys::homes(HomeKind::Run, id.shard());
            let mut cmd = redis::cmd("ZSCORE");
            cmd.arg(key.as_bytes()).arg(text(*id));
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(ask).collect()).await;
        let mut homeless = Vec::new();
        for (id, reply) in ids.into_iter().zip(replies) {
            if reply? == Value::Nil {
                homeless.push(id);
            }
        }
        scan.cursor = number(&cursor)?;
        if scan.cursor == 0 {
            scan.nodes.as_mut().and_then(VecDeque::pop_front);
        }
        Ok(Some(homeless))
    }
}
