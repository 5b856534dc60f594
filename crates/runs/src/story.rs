//! The timeline of a run as it is shown: what is in its list, and behind it what the run's hash holds that is not in
//! the list yet.

use muster_domain::RunId;
use muster_store::Timeline;

use crate::{
    Runs, RunsError, TimelineEntry,
    notes::{FIELD, Notes},
};

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStory {
    /// The entries, oldest first.
    pub entries: Vec<TimelineEntry>,
    /// How many entries are missing in between: only the first and the last ones are kept.
    pub dropped: u64,
}

impl Runs {
    /// What happened in a run, without gaps between two reads; empty if there is no such run.
    pub async fn story(&self, id: RunId) -> Result<RunStory, RunsError> {
        // The hash first: an entry leaves it only after it is in the list.
        let stored = self.flow.store.read_run_fields(id, &[FIELD.as_bytes()]).await?;
        let Some(stored) = stored else { return Ok(RunStory::default()) };
        let notes = Notes::read(&stored.fields);
        let notes = notes.map_err(|fault| RunsError::unreadable(id, format!("the field `{FIELD}`: {fault}")))?;
        let listed = self.flow.store.read_timeline(id).await?;
        Ok(together(&listed, &notes))
    }
}

fn together(listed: &Timeline, notes: &Notes) -> RunStory {
    let next = listed.next();
    let (first, lines) = notes.unlisted().unwrap_or((next, Vec::new()));
    let behind = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
    let all = listed.first.iter().chain(&listed.last).chain(lines.iter().skip(behind));
    RunStory {
        entries: all.filter_map(|line| TimelineEntry::read(line)).collect(),
        dropped: listed.missing + first.saturating_sub(next),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bytes::Bytes;

    use super::*;

    fn line(n: u64) -> Bytes {
        Bytes::from(format!("{{\"at\":{n},\"what\":\"running\"}}"))
    }

    fn notes(first: u64, lines: std::ops::Range<u64>) -> Notes {
        let lines: Vec<String> = lines.map(|n| String::from_utf8(line(n).to_vec()).unwrap()).collect();
        let form = serde_json::json!({"n": first, "t": lines});
        Notes::read(&HashMap::from([(Bytes::from_static(FIELD.as_bytes()), Bytes::from(form.to_string()))])).unwrap()
    }

    fn times(listed: &Timeline, notes: &Notes) -> (Vec<u64>, u64) {
        let story = together(listed, notes);
        (story.entries.iter().map(|entry| entry.at.0).collect(), story.dropped)
    }

    #[test]
    fn each_entry_is_shown_once_wherever_it_is() {
        let listed = Timeline { first: vec![line(0), line(1)], missing: 0, last: Vec::new() };
        assert_eq!(times(&listed, &notes(1, 1..4)), (vec![0, 1, 2, 3], 0), "one is in both");
        assert_eq!(times(&listed, &notes(2, 2..3)), (vec![0, 1, 2], 0));
        assert_eq!(times(&listed, &notes(0, 0..1)), (vec![0, 1], 0), "the list is ahead");
        assert_eq!(times(&Timeline::default(), &notes(0, 0..2)), (vec![0, 1], 0), "nothing is listed");
        let cut = Timeline { first: vec![line(0)], missing: 7, last: vec![line(8)] };
        assert_eq!(times(&cut, &notes(9, 9..10)), (vec![0, 8, 9], 7));
        assert_eq!(times(&listed, &notes(5, 5..6)), (vec![0, 1, 5], 3), "a failover lost three of the list");
    }
}
