//! `delay`: waits for a span or for a moment. One in the past ends at once.

use std::time::Duration;

use muster_domain::Time;
use serde_json::Value;

use super::Behaviour;
use crate::{
    definition::{DelayStep, Kind, Step},
    run::{Done, End, Place, RunError, Sight, Work},
};

pub(crate) struct Delay;

fn until(start: Time, delay: &DelayStep, value: &Value) -> Result<Time, RunError> {
    let wrong = |what: &str| RunError::new("expression_error", format!("{what}, not {value}"));
    match delay {
        DelayStep::Ms(_) => {
            let ms = value.as_u64().or_else(|| value.as_i64().map(|_| 0));
            ms.map(|ms| start + Duration::from_millis(ms)).ok_or_else(|| wrong("a delay is a whole number"))
        }
        DelayStep::Until(_) => {
            let text = value.as_str().ok_or_else(|| wrong("a delay ends at an RFC 3339 time"))?;
            Time::parse_rfc3339(text).ok_or_else(|| wrong("a delay ends at an RFC 3339 time"))
        }
    }
}

impl Behaviour for Delay {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Kind::Delay(delay) = &step.kind else { return Ok(()) };
        let (DelayStep::Ms(template) | DelayStep::Until(template)) = delay;
        let wake = work.template(template, &Sight::of(place))?.and_then(|value| until(work.now, delay, &value));
        match wake {
            Err(error) => work.end(place, End::unborn(error)),
            Ok(wake) if wake.reached(work.now) => work.end(place, End::succeeded(None)),
            Ok(wake) => {
                work.step_mut(place)?.wake = wake;
                work.touch(place, wake)
            }
        }
    }

    fn due(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        work.end(place, End::succeeded(None))
    }
}
