//! `fail`: fails with a code and a message of the user's.

use serde_json::Value;

use super::Behaviour;
use crate::{
    definition::{Kind, Step},
    run::{Done, End, Place, RunError, Sight, Work},
};

pub(crate) struct Fail;

impl Behaviour for Fail {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Kind::Fail { code, message } = &step.kind else { return Ok(()) };
        let error = match work.template(message, &Sight::of(place))? {
            Ok(Value::String(text)) => RunError::new(code, text),
            Ok(other) => RunError::new(code, other.to_string()),
            Err(error) => error,
        };
        work.end(place, End::failed(error))
    }
}
