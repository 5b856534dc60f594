//! The filter of a bulk operation, as its request gives it.
//!
//! Promises: no job is touched by accident. A retry without states matches jobs that ended badly, a cancel without
//! states matches jobs that have not ended, and a delete has to name its states. A state that the action cannot apply
//! to is refused.

use muster_domain::{Labels, ProblemCode, State, Topic};
use muster_store::{Action, ListFilter};

use crate::{
    json::{Faults, Object, join},
    problem::Problem,
};

/// Reads the field `filter` of a request.
pub(crate) fn read_filter(mut o: Object<'_>, action: Action, faults: &mut Faults) -> ListFilter {
    let states = o.names("state", faults, |word| match State::parse(word) {
        None => Err(format!("`{word}` is not a state")),
        Some(state) if state.is_end() == (action == Action::Cancel) => {
            Err(format!("jobs that are {word} cannot be part of a bulk {}", action.as_str()))
        }
        Some(state) => Ok(state),
    });
    let states = match (states, action) {
        (Some(states), _) if !states.is_empty() => states,
        (_, Action::Retry) => State::ALL.iter().copied().filter(|state| state.is_bad_end()).collect(),
        (_, Action::Cancel) => State::ALL.iter().copied().filter(|state| !state.is_end()).collect(),
        // Actions on runs have a filter of their own.
        (_, Action::CancelRuns | Action::PauseRuns | Action::RerunRuns) => Vec::new(),
        (given, Action::Delete) => {
            if given.is_none_or(|states| states.is_empty()) && faults.none() {
                faults.invalid(o.at(), "state", "is required for a delete: say which ends");
            }
            Vec::new()
        }
    };
    let mut filter = ListFilter {
        states,
        topic: o.name("topic", faults, Topic::parse),
        error_code: o.text("error_code", faults).map(Into::into),
        worker: o.text("worker", faults).map(Into::into),
        run: o.name("run_id", faults, str::parse),
        created_after: o.moment("created_after", faults),
        created_before: o.moment("created_before", faults),
        finished_after: o.moment("finished_after", faults),
        finished_before: o.moment("finished_before", faults),
        ..ListFilter::default()
    };
    filter.labels = take_labels(&mut o, faults);
    o.finish(faults);
    filter
}

/// Takes the labels that are looked for: any names and values.
pub(super) fn take_labels(o: &mut Object<'_>, faults: &mut Faults) -> Labels {
    let mut found = Labels::new();
    let Some(labels) = o.object("labels", faults) else { return found };
    let at = labels.at().to_owned();
    for (name, value) in labels.into_fields() {
        match crate::json::text(value.get()) {
            Some(value) => _ = found.insert(name.into_owned(), value.into_owned()),
            None => faults.note(ProblemCode::InvalidRequest, join(&at, &name), "must be a string"),
        }
    }
    found
}

/// Parses the stored filter of an accepted operation.
pub(super) fn parse(text: &str, action: Action) -> Result<ListFilter, Problem> {
    let mut faults = Faults::default();
    let filter = read_filter(Object::from_body(text.as_bytes())?, action, &mut faults);
    faults.into_result()?;
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read() {
        let text = r#"{"state":["failed"],"topic":"a.b","labels":{"k":"v"},"error_code":"boom","worker":"w",
            "run_id":"0198c0de-0000-7000-8000-000000000000",
            "created_after":"2026-01-01T00:00:00Z","finished_before":"2026-01-02T00:00:00Z"}"#;
        let filter = parse(text, Action::Retry).unwrap();
        assert_eq!(filter.states, [State::Failed]);
        assert_eq!((filter.labels["k"].as_str(), filter.error_code.as_deref()), ("v", Some("boom")));
        assert!(
            filter.run.is_some()
                && filter.topic.is_some()
                && filter.created_after.is_some()
                && filter.finished_before.is_some()
        );
    }

    #[test]
    fn without_states_an_action_is_for_what_it_is_meant_for() {
        let states = |action| parse("{}", action).map(|filter| filter.states);
        assert!(states(Action::Retry).unwrap().iter().all(|state| state.is_bad_end()));
        assert!(states(Action::Cancel).unwrap().iter().all(|state| !state.is_end()));
        assert_eq!(states(Action::Delete).unwrap_err().errors[0].pointer, "/state");
    }

    #[test]
    fn states_that_an_action_can_do_nothing_with_are_refused() {
        for (action, state) in [(Action::Retry, "queued"), (Action::Cancel, "failed"), (Action::Delete, "running")] {
            let problem = parse(&format!(r#"{{"state":["{state}"]}}"#), action).unwrap_err();
            assert_eq!(problem.errors[0].pointer, "/state/0", "{action:?}");
        }
        assert!(parse(r#"{"stat":["failed"]}"#, Action::Retry).is_err());
        assert!(parse(r#"{"labels":{"a":1}}"#, Action::Retry).is_err());
    }
}
