//! The functions. `functions` says what each one takes; here is what it does.

use super::{
    budget::Budget,
    compare::order,
    item::{Item, List, Map},
    number::{Num, double},
    output, text,
    time::{self, SECOND},
};
use crate::{
    EvalError,
    functions::{Function, Part, What},
};

type Result<T> = std::result::Result<T, EvalError>;

/// Calls a function with as many arguments as it takes.
pub(crate) fn call<'a>(function: &Function, args: &[Item<'a>], budget: &mut Budget) -> Result<Item<'a>> {
    let done = match function.what {
        What::Get(part) => get(part, args),
        What::Min | What::Max => extreme(function, args, budget),
        _ => match args {
            [Item::Text(first), rest @ ..] => of_text(function, first, rest, budget),
            [first, rest @ ..] => of_others(function, first, rest, budget),
            [] => Ok(None),
        },
    }?;
    done.ok_or_else(|| {
        let types: Vec<_> = args.iter().map(Item::type_name).collect();
        EvalError::Type(format!("{}() does not take {}", function.name, types.join(", ")))
    })
}

/// A function whose first argument is text. `None` if it does not take these arguments.
fn of_text<'a>(function: &Function, first: &str, rest: &[Item<'a>], budget: &mut Budget) -> Result<Option<Item<'a>>> {
    budget.take_text(first.len())?;
    let unread = |what: &str| {
        let shown: String = first.chars().take(40).collect();
        EvalError::Value(format!("{shown:?} is no {what}"))
    };
    Ok(Some(match (function.what, rest) {
        (What::Size, []) => Item::count(first.chars().count()),
        (What::Contains, [Item::Text(part)]) => Item::Bool(first.contains(&**part)),
        (What::StartsWith, [Item::Text(part)]) => Item::Bool(first.starts_with(&**part)),
        (What::EndsWith, [Item::Text(part)]) => Item::Bool(first.ends_with(&**part)),
        (What::IndexOf, [Item::Text(part)]) => text::index_of(first, part),
        (What::LowerAscii, []) => Item::text(first.to_ascii_lowercase()),
        (What::UpperAscii, []) => Item::text(first.to_ascii_uppercase()),
        (What::Trim, []) => Item::text(first.trim()),
        (What::Replace, [Item::Text(from), Item::Text(to), times @ ..]) => {
            let Some(times) = limit(times) else { return Ok(None) };
            text::replace(first, from, to, times, budget)?
        }
        (What::Split, [Item::Text(by), parts @ ..]) => {
            let Some(parts) = limit(parts) else { return Ok(None) };
            text::split(first, by, parts, budget)?
        }
        (What::Substring, [Item::Num(start), end @ ..]) => {
            let beyond = || EvalError::Value("substring() reaches beyond the string".to_owned());
            let place = |n: &Num| n.whole().and_then(|n| usize::try_from(n).ok()).ok_or_else(beyond);
            let end = match end {
                [] => None,
                [Item::Num(end)] => Some(place(end)?),
                _ => return Ok(None),
            };
            text::substring(first, place(start)?, end, budget)?
        }
        (What::Text | What::Dyn, []) => Item::text(first),
        (What::Int, []) => Item::int(first.parse().map_err(|_| unread("int"))?),
        (What::Uint, []) => Item::Num(Num::Uint(first.parse().map_err(|_| unread("uint"))?)),
        (What::Double, []) => Item::Num(Num::Double(double(first).ok_or_else(|| unread("double"))?, None)),
        (What::Bool, []) => match first {
            "true" | "True" | "TRUE" | "t" | "1" => Item::Bool(true),
            "false" | "False" | "FALSE" | "f" | "0" => Item::Bool(false),
            _ => return Err(unread("bool")),
        },
        (What::Bytes, []) => Item::Bytes(first.as_bytes().into()),
        (What::Timestamp, []) => Item::Time(time::read_time(first).ok_or_else(|| unread("timestamp of RFC 3339"))?),
        (What::Duration, []) => Item::Span(time::read_span(first).ok_or_else(|| unread("duration such as 1h30m"))?),
        _ => return Ok(None),
    }))
}

/// A function whose first argument is not text. `None` if it does not take these arguments.
fn of_others<'a>(
    function: &Function,
    first: &Item<'a>,
    rest: &[Item<'a>],
    budget: &mut Budget,
) -> Result<Option<Item<'a>>> {
    Ok(Some(match (function.what, first, rest) {
        (What::Dyn, _, []) => first.clone(),
        (What::Size, Item::Bytes(bytes), []) => Item::count(bytes.len()),
        (What::Size, Item::List(list), []) => Item::count(list.len()),
        (What::Size, Item::Map(map), []) => Item::count(size(map)),
        (What::Join, Item::List(list), []) => text::join(list, "", budget)?,
        (What::Join, Item::List(list), [Item::Text(by)]) => text::join(list, by, budget)?,
        (What::Text, Item::Bytes(bytes), []) => {
            budget.take_text(bytes.len())?;
            return output::scalar(first).transpose().map(|text| text.map(Item::text));
        }
        (What::Text, _, []) => return output::scalar(first).transpose().map(|text| text.map(Item::text)),
        (What::Int, Item::Num(n), []) => Item::int(whole(*n, "int")?),
        (What::Int, Item::Time(nanos), []) => {
            Item::int(i64::try_from(nanos.div_euclid(SECOND)).map_err(|_| unfit("int"))?)
        }
        (What::Uint, Item::Num(n), []) => Item::Num(Num::Uint(whole(*n, "uint")?)),
        (What::Double, Item::Num(n), []) => Item::Num(Num::Double(n.double()?, None)),
        (What::Bool, Item::Bool(b), []) => Item::Bool(*b),
        (What::Bytes, Item::Bytes(_), [])
        | (What::Timestamp, Item::Time(_), [])
        | (What::Duration, Item::Span(_), []) => first.clone(),
        (What::Timestamp, Item::Num(n), []) => {
            let seconds: i64 = whole(*n, "timestamp")?;
            Item::Time(time::time(i128::from(seconds) * SECOND)?)
        }
        _ => return Ok(None),
    }))
}

fn size(map: &Map) -> usize {
    map.len()
}

/// An optional count: none is no limit, and so is a negative one.
fn limit(args: &[Item]) -> Option<Option<usize>> {
    match args {
        [] => Some(None),
        [Item::Num(n)] => Some(usize::try_from(n.whole()?).ok()),
        _ => None,
    }
}

fn unfit(what: &str) -> EvalError {
    EvalError::Number(format!("the number does not fit {what}"))
}

/// A number without its fraction, if it fits.
fn whole<T: TryFrom<i128>>(n: Num, what: &str) -> Result<T> {
    let truncated = match n {
        Num::Double(n, _) if n.abs() < 2f64.powi(64) => Some(n.trunc() as i128),
        n => n.whole(),
    };
    let fitting = truncated.and_then(|n| T::try_from(n).ok());
    fitting.ok_or_else(|| EvalError::Number(format!("{} does not fit {what}", n.told())))
}

/// `min` and `max` of numbers, or of the numbers of one list.
fn extreme<'a>(function: &Function, args: &[Item<'a>], budget: &mut Budget) -> Result<Option<Item<'a>>> {
    let made;
    let list = match args {
        [Item::List(list)] => list,
        _ => {
            made = List::Made(std::rc::Rc::new(args.to_vec()));
            &made
        }
    };
    let mut best: Option<Item> = None;
    for item in list.iter() {
        budget.take(1)?;
        let item = item?;
        if !matches!(item, Item::Num(_)) {
            return Ok(None);
        }
        let better = match &best {
            None => true,
            Some(best) => order(&item, best, budget)?
                .is_some_and(|order| if function.what == What::Min { order.is_lt() } else { order.is_gt() }),
        };
        if better {
            best = Some(item);
        }
    }
    best.map(Some).ok_or_else(|| EvalError::Value(format!("{}() of nothing", function.name)))
}

/// A getter of a timestamp, in a zone if one is given, or of a duration.
fn get<'a>(part: Part, args: &[Item<'a>]) -> Result<Option<Item<'a>>> {
    match args {
        [Item::Span(nanos)] => Ok(time::part_of_span(*nanos, part).map(Item::int)),
        [at] => match at.as_time() {
            Some(nanos) => time::part_of_time(nanos, part, None).map(|n| Some(Item::int(n))),
            None => Ok(None),
        },
        [at, Item::Text(zone)] => match at.as_time() {
            Some(nanos) => time::part_of_time(nanos, part, Some(zone)).map(|n| Some(Item::int(n))),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}
