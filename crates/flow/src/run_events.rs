//! Tells watchers what happens in runs of workflows.
//!
//! Events of one call keep their order. A message is bounded in events and in bytes: a user's event may bring its own
//! data. An event may come twice; a user's event then has the same id.

use muster_bus::{BusError, subjects};
use muster_wire::{Body, v1};

use crate::{BUS_PATIENCE, Flow};

/// The most events in one message.
const MOST: usize = 512;
/// The most bytes of data of all events in one message, unless one event alone has more.
const MOST_DATA: usize = 256 * 1024;

/// The events in messages of bounded size.
fn messages(items: Vec<v1::RunEvent>) -> Vec<Vec<v1::RunEvent>> {
    let (mut messages, mut data) = (Vec::<Vec<v1::RunEvent>>::new(), 0);
    for item in items {
        match messages.last_mut().filter(|last| last.len() < MOST && data + item.data.len() <= MOST_DATA) {
            Some(last) => {
                data += item.data.len();
                last.push(item);
            }
            None => {
                data = item.data.len();
                messages.push(vec![item]);
            }
        }
    }
    messages
}

/// The message id for a user's event that is alone in its message: carried out again, it is one message.
fn told_again(items: &[v1::RunEvent]) -> Option<String> {
    let [only] = items else { return None };
    (!only.id.is_empty()).then(|| format!("run-event-{}", only.id))
}

impl Flow {
    /// Publishes events of runs to watchers. Watchers read again when they miss a state, so these are only sent. For
    /// events with an id, which users ask for, the stream confirms the message; after an error the caller repeats them.
    pub async fn tell_run_watchers(&self, items: Vec<v1::RunEvent>) -> Result<(), BusError> {
        let subject = subjects::workflow_event();
        let mut told = Ok(());
        for items in messages(items) {
            let (asked, id) = (items.iter().any(|item| !item.id.is_empty()), told_again(&items));
            let body = Body::RunEvent(v1::RunEventGroup { items });
            let sent = match asked {
                true => self.bus.publish_within(&subject, id.as_deref(), None, body, BUS_PATIENCE).await,
                false => self.bus.broadcast(&subject, body).await,
            };
            told = told.and(sent);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(version: u32, data: usize) -> v1::RunEvent {
        v1::RunEvent { version, data: vec![b'1'; data].into(), ..Default::default() }
    }

    #[test]
    fn messages_are_bounded_and_keep_the_order() {
        let sizes = |items: Vec<v1::RunEvent>| messages(items).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(Vec::new()), [0; 0]);
        assert_eq!(sizes((0..1_025).map(|n| event(n, 0)).collect()), [512, 512, 1]);
        let large = MOST_DATA;
        let mixed = vec![event(0, 0), event(1, large), event(2, 0), event(3, 1), event(4, large + 1), event(5, 0)];
        assert_eq!(sizes(mixed.clone()), [3, 1, 1, 1]);
        assert_eq!(messages(mixed.clone()).concat(), mixed);
    }

    #[test]
    fn a_users_event_that_is_repeated_alone_is_one_message() {
        let own = v1::RunEvent { id: "e-1".into(), ..event(1, 0) };
        assert_eq!(told_again(std::slice::from_ref(&own)).as_deref(), Some("run-event-e-1"));
        assert_eq!(told_again(&[own.clone(), own]), None);
        assert_eq!(told_again(&[event(1, 0)]), None);
    }
}
