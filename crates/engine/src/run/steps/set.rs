//! `set`: computes a value.

use super::Behaviour;
use crate::{
    definition::{Kind, Step},
    run::{Done, End, Place, Sight, Work},
};

pub(crate) struct Set;

impl Behaviour for Set {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Kind::Set(template) = &step.kind else { return Ok(()) };
        match work.template(template, &Sight::of(place))? {
            Ok(value) => work.end(place, End::succeeded(Some(value))),
            Err(error) => work.end(place, End::unborn(error)),
        }
    }
}
