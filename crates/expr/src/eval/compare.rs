//! Equality, order and membership. Every element that is looked at comes out of the budget.

use std::cmp::Ordering;

use super::{
    budget::Budget,
    item::{Item, Map},
};
use crate::EvalError;

type Result<T> = std::result::Result<T, EvalError>;

/// Whether two values are equal. Values of different types are not, except for numbers, which are equal by value, and
/// for a timestamp and its text.
pub(crate) fn equal<'a>(a: &Item<'a>, b: &Item<'a>, budget: &mut Budget) -> Result<bool> {
    Ok(match (a, b) {
        (Item::Null, Item::Null) => true,
        (Item::Bool(a), Item::Bool(b)) => a == b,
        (Item::Num(a), Item::Num(b)) => a.compare(*b) == Some(Ordering::Equal),
        (Item::Text(a), Item::Text(b)) => {
            budget.take_text(a.len().min(b.len()))?;
            a == b
        }
        (Item::Bytes(a), Item::Bytes(b)) => {
            budget.take_text(a.len().min(b.len()))?;
            a == b
        }
        (Item::Time(_), Item::Time(_) | Item::Text(_)) | (Item::Text(_), Item::Time(_)) => a.as_time() == b.as_time(),
        (Item::Span(a), Item::Span(b)) => a == b,
        (Item::List(a), Item::List(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b.iter()) {
                budget.take(1)?;
                if !equal(&a?, &b?, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Item::Map(a), Item::Map(b)) => maps_equal(a, b, budget)?,
        _ => false,
    })
}

fn maps_equal<'a>(a: &Map<'a>, b: &Map<'a>, budget: &mut Budget) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for key in a.keys() {
        budget.take(1)?;
        let (Some(a), Some(b)) = (a.get(&key, || key.to_string()), b.get(&key, || key.to_string())) else {
            return Ok(false);
        };
        if !equal(&a?, &b?, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two values. An error if their types have none. `None` if one is not a number.
pub(crate) fn order<'a>(a: &Item<'a>, b: &Item<'a>, budget: &mut Budget) -> Result<Option<Ordering>> {
    Ok(match (a, b) {
        (Item::Num(a), Item::Num(b)) => a.compare(*b),
        (Item::Text(a), Item::Text(b)) => {
            budget.take_text(a.len().min(b.len()))?;
            Some(a.cmp(b))
        }
        (Item::Bytes(a), Item::Bytes(b)) => Some(a.cmp(b)),
        (Item::Bool(a), Item::Bool(b)) => Some(a.cmp(b)),
        (Item::Span(a), Item::Span(b)) => Some(a.cmp(b)),
        (Item::Time(_), _) | (_, Item::Time(_)) if a.as_time().is_some() && b.as_time().is_some() => {
            Some(a.as_time().cmp(&b.as_time()))
        }
        _ => {
            let message = format!("{} and {} cannot be ordered", a.type_name(), b.type_name());
            return Err(EvalError::Type(message));
        }
    })
}

/// Whether a list has an element, or a map a key.
pub(crate) fn contains<'a>(item: &Item<'a>, within: &Item<'a>, budget: &mut Budget) -> Result<bool> {
    match within {
        Item::List(list) => {
            for element in list.iter() {
                budget.take(1)?;
                if equal(item, &element?, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Item::Map(map) => Ok(item.key().is_some_and(|key| map.has(&key))),
        _ => Err(EvalError::Type(format!("`in` takes a list or a map, and not {}", within.type_name()))),
    }
}
