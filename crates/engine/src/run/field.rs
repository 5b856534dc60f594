//! The names of a run's fields.

use super::{place::Place, plan::Plan};

/// One field of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Field {
    /// State, counters and cursors.
    Head,
    /// What the run is; written once.
    About,
    /// The input; written once.
    Input,
    /// The output; written once.
    Output,
    /// The keys of the commands that were not carried out.
    Outbox,
    /// One step.
    Step(Place),
    /// Sixty-four items of a for-each.
    Page(Place, u32),
    /// The values of sixty-four items; written once.
    Items(Place, u32),
    /// The result of a step.
    Result(Place),
    /// What `collect` keeps of an item.
    Collected(Place),
    /// The state of a loop.
    LoopState(Place),
    /// The input of a compensation.
    Undo(Place),
    /// The places to be undone, in order.
    UndoList,
    /// The signals of one name.
    Queue(String),
    /// One signal.
    Signal(u64),
    /// Signals that were read, in order.
    Read(u32),
    /// The requests that were applied.
    Ops,
}

impl Field {
    /// The name in the run's hash.
    pub(crate) fn name(&self, plan: &Plan) -> String {
        let at = |letter: &str, place: &Place| format!("{letter}:{}", plan.text(place));
        match self {
            Field::Head => "head".to_owned(),
            Field::About => "about".to_owned(),
            Field::Input => "input".to_owned(),
            Field::Output => "output".to_owned(),
            Field::Outbox => "outbox".to_owned(),
            Field::UndoList => "undo".to_owned(),
            Field::Ops => "ops".to_owned(),
            Field::Step(place) => at("s", place),
            Field::Page(place, page) => format!("i:{}:{page}", plan.text(place)),
            Field::Items(place, page) => format!("l:{}:{page}", plan.text(place)),
            Field::Result(place) => at("r", place),
            Field::Collected(place) => at("c", place),
            Field::LoopState(place) => at("v", place),
            Field::Undo(place) => at("u", place),
            Field::Queue(name) => format!("q:{name}"),
            Field::Signal(id) => format!("g:{id:016x}"),
            Field::Read(page) => format!("gr:{page}"),
        }
    }

    /// Reads a name; `None` for one that is not the engine's.
    pub(crate) fn parse(plan: &Plan, name: &str) -> Option<Field> {
        let Some((letter, rest)) = name.split_once(':') else {
            return Some(match name {
                "head" => Field::Head,
                "about" => Field::About,
                "input" => Field::Input,
                "output" => Field::Output,
                "outbox" => Field::Outbox,
                "undo" => Field::UndoList,
                "ops" => Field::Ops,
                _ => return None,
            });
        };
        let place = || plan.place(rest);
        let paged = || {
            let (place, page) = rest.rsplit_once(':')?;
            Some((plan.place(place)?, page.parse().ok()?))
        };
        Some(match letter {
            "s" => Field::Step(place()?),
            "i" => paged().map(|(place, page)| Field::Page(place, page))?,
            "l" => paged().map(|(place, page)| Field::Items(place, page))?,
            "r" => Field::Result(place()?),
            "c" => Field::Collected(place()?),
            "v" => Field::LoopState(place()?),
            "u" => Field::Undo(place()?),
            "q" => Field::Queue(rest.to_owned()),
            "g" => Field::Signal(u64::from_str_radix(rest, 16).ok()?),
            "gr" => Field::Read(rest.parse().ok()?),
            _ => return None,
        })
    }

    /// The step that the field belongs to, with what it is without it; `None` for what belongs to the run.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Field::Step(place)
            | Field::Page(place, _)
            | Field::Items(place, _)
            | Field::Result(place)
            | Field::Collected(place)
            | Field::LoopState(place)
            | Field::Undo(place) => Some(place),
            _ => None,
        }
    }

    /// The same field of another step.
    pub(crate) fn moved(&self, to: Place) -> Field {
        match self {
            Field::Step(_) => Field::Step(to),
            Field::Page(_, page) => Field::Page(to, *page),
            Field::Items(_, page) => Field::Items(to, *page),
            Field::Result(_) => Field::Result(to),
            Field::Collected(_) => Field::Collected(to),
            Field::LoopState(_) => Field::LoopState(to),
            Field::Undo(_) => Field::Undo(to),
            other => other.clone(),
        }
    }
}
