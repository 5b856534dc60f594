//! The topics of a tenant as the API shows them, and how long their ended jobs are kept.
//!
//! Leaves to others: storing and distributing settings (`flow`), applying them to submits (`flow::admission`), reading
//! them from requests (`topics/read`).

mod read;

use std::{collections::BTreeMap, sync::Arc};

use muster_domain::Topic;
use muster_flow::Settings;
use muster_store::{Retention, TopicRecord, WorkerSnapshot};

use crate::auth::Caller;

pub(crate) use read::read_settings;

/// How long ended jobs are kept: the usual times, or those of their topic.
pub(crate) fn retention(settings: &Settings, usual: &Retention) -> Retention {
    Retention { topics: settings.retentions(), ..*usual }
}

/// The topics of the caller's tenant that the caller may touch: those with settings, and those that live workers
/// serve, in the order of their names.
pub(crate) fn names(
    settings: &Settings,
    caller: &Caller,
    snapshot: Option<&WorkerSnapshot>,
) -> BTreeMap<Topic, Option<Arc<TopicRecord>>> {
    let mine = snapshot.iter().flat_map(|s| &s.workers).filter(|w| w.tenant == caller.tenant.as_str());
    let served = mine.flat_map(|worker| &worker.topics).map(|topic| (topic.clone(), None));
    let told = settings.topics_of(caller.tenant.as_str());
    let told = told.into_iter().map(|(topic, told)| (topic, Some(told)));
    let all = served.chain(told).filter_map(|(name, told)| Some((Topic::parse(&name).ok()?, told)));
    all.filter(|(topic, _)| caller.may_touch(topic).is_ok()).collect()
}
