//! What a job carries from its offer to its result.
//!
//! Promises: nothing carried costs nothing: no bytes in the message, and no decoding. Results of workers that copy only
//! the older fields are read as well.

use bytes::Bytes;
use muster_domain::RunId;
use prost::Message;

use crate::v1::{Carried, Result as Report};

impl Carried {
    /// The bytes for an offer; empty if there is nothing to carry.
    pub fn into_bytes(self) -> Bytes {
        self.encode_to_vec().into()
    }
}

/// What an offer carries of a job of this run, given as raw bytes; empty, and without any encoding, if there is none. Slot
/// and trace are still fields of their own, because workers of older releases copy only those.
pub fn carried_of(run_id: Bytes) -> Bytes {
    match run_id.is_empty() {
        true => Bytes::new(),
        false => Carried { run_id, ..Carried::default() }.into_bytes(),
    }
}

/// The run in what an offer carries; none if there is none, or if the bytes do not decode.
pub fn carried_run(carried: &Bytes) -> Option<RunId> {
    match carried.is_empty() {
        true => None,
        false => Carried::decode(carried.clone()).ok()?.run(),
    }
}

impl Carried {
    /// The run that the job belongs to.
    pub fn run(&self) -> Option<RunId> {
        RunId::from_slice(&self.run_id)
    }
}

impl Report {
    /// Takes what the job carries out of its result. A field of [`Carried`] wins over the older field of the same
    /// meaning. Bytes that do not decode carry nothing: the result itself still counts.
    pub fn take_carried(&mut self) -> Carried {
        let mut carried = match self.carried.is_empty() {
            true => Carried::default(),
            false => Carried::decode(std::mem::take(&mut self.carried)).unwrap_or_default(),
        };
        let (slot, traceparent) = (self.slot.take(), std::mem::take(&mut self.traceparent));
        carried.slot = carried.slot.or(slot);
        if carried.traceparent.is_empty() {
            carried.traceparent = traceparent;
        }
        carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Slot;

    fn slot(version: u32) -> Option<Slot> {
        Some(Slot { version, ..Slot::default() })
    }

    #[test]
    fn what_an_offer_carries_comes_back_with_the_result() {
        let carried = Carried { slot: slot(7), traceparent: "t".into(), run_id: vec![1, 2].into() };
        let mut report = Report { carried: carried.clone().into_bytes(), ..Report::default() };
        assert_eq!(report.take_carried(), carried);
        assert_eq!(report.take_carried(), Carried::default(), "it is taken once");
    }

    #[test]
    fn the_run_of_a_job_is_carried_and_no_run_has_no_bytes() {
        let run = RunId::mint(3);
        let carried = carried_of(crate::run_bytes(Some(run)));
        assert_eq!(carried_run(&carried), Some(run));
        let mut report = Report { carried, slot: slot(3), ..Report::default() };
        let read = report.take_carried();
        assert_eq!((read.run(), read.slot), (Some(run), slot(3)), "beside the older fields");
        assert!(carried_of(crate::run_bytes(None)).is_empty());
        assert_eq!(carried_run(&Bytes::new()), None);
        assert_eq!(carried_run(&Bytes::from_static(b"\xff")), None);
        assert_eq!(Carried { run_id: Bytes::from_static(b"short"), ..Carried::default() }.run(), None);
    }

    #[test]
    fn nothing_carried_has_no_bytes() {
        assert!(Carried::default().into_bytes().is_empty());
        assert_eq!(Report::default().take_carried(), Carried::default());
    }

    #[test]
    fn a_result_of_an_older_worker_is_read_and_the_new_field_wins() {
        let old = Report { slot: slot(3), traceparent: "old".into(), ..Report::default() };
        let read = old.clone().take_carried();
        assert_eq!((read.slot, read.traceparent.as_str()), (slot(3), "old"));
        let new = Carried { traceparent: "new".into(), ..Carried::default() }.into_bytes();
        let read = Report { carried: new, ..old.clone() }.take_carried();
        assert_eq!((read.slot, read.traceparent.as_str()), (slot(3), "new"));
        let broken = Report { carried: vec![0xff].into(), ..old }.take_carried();
        assert_eq!(broken.traceparent, "old", "bytes that do not decode carry nothing");
    }
}
