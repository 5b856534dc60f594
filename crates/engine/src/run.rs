//! Runs: what an event does to a run of a workflow.
//!
//! A [`Run`] is a hash of small fields: a head, one field per step, items in pages of 64, values written once, and an
//! outbox. [`Run::apply`] takes an [`Event`], which carries its time, and changes the run in memory; it says which
//! commands are new, what is new in the timeline, and when the run needs a timer ([`Run::next_look`]). The caller saves
//! [`Run::changes`] and then carries the commands out; what was not carried out is in [`Run::outbox`] until
//! [`What::Done`] clears it. [`Run::view_steps`] and its neighbours show a run to people.
//!
//! Promises: an event that was applied before changes nothing; a command that is carried out twice is harmless, because
//! its ids are derived; an event that needs fields that were not read changes nothing and names them ([`Missing`]); the
//! same events in the same order give the same fields.

mod apply;
mod build;
mod codec;
mod command;
mod document;
mod each;
mod ending;
mod event;
mod field;
mod forget;
mod glance;
mod pause;
mod place;
mod plan;
mod records;
mod rerun;
mod scope;
mod sight;
mod signals;
mod size;
mod slot;
mod state;
mod steps;
mod timeline;
mod timers;
mod view;
mod waits;
mod work;

pub use codec::Unreadable;
pub use command::{Action, Command, Submit, Verb};
pub use document::{Applied, Missing, Run};
pub use event::{Event, JobEnd, Outcome, Refusal, RunOp, SubRunEnd, What};
pub use glance::Glance;
pub use place::Place;
pub use plan::Plan;
pub use records::{About, Parent, RunError, Undo};
pub use rerun::{Again, Rerun, RerunFault};
pub use slot::SlotWish;
pub use state::{RUNS, RunMove, RunState, STEPS, StepMove, StepState};
pub use timeline::Entry;
pub use view::{EachView, ItemView, ItemsView, StepView};
pub use waits::Wait;

pub(crate) use command::{Key, job_id, sub_run_id, task};
pub(crate) use event::task_labels;
pub(crate) use field::Field;
pub(crate) use place::Inside;
pub(crate) use records::{Phase, ScopeRecord, StopWhy};
pub(crate) use scope::End;
pub(crate) use sight::{Evaluated, Sight};
pub(crate) use work::{Done, Work};
