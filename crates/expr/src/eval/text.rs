//! The functions of text. No text grows beyond the largest result, and walking through one costs by its length.

use std::rc::Rc;

use super::{
    budget::Budget,
    item::{Item, List},
};
use crate::EvalError;

type Result<T> = std::result::Result<T, EvalError>;

/// Texts behind each other.
pub(crate) fn concat<'a>(texts: &[&str], budget: &mut Budget) -> Result<Item<'a>> {
    let length = texts.iter().map(|text| text.len()).sum();
    budget.fits(length)?;
    budget.take_text(length)?;
    Ok(Item::text(texts.concat()))
}

/// Replaces the first `times` places, or all of them.
pub(crate) fn replace<'a>(
    text: &str,
    from: &str,
    to: &str,
    times: Option<usize>,
    budget: &mut Budget,
) -> Result<Item<'a>> {
    budget.take_text(text.len())?;
    let found = text.matches(from).take(times.unwrap_or(usize::MAX)).count();
    let length = text.len() - found * from.len() + found.saturating_mul(to.len());
    budget.fits(length)?;
    budget.take(found)?;
    budget.take_text(length)?;
    Ok(Item::text(text.replacen(from, to, found)))
}

/// The parts between separators, at most `parts` of them.
pub(crate) fn split<'a>(text: &str, by: &str, parts: Option<usize>, budget: &mut Budget) -> Result<Item<'a>> {
    budget.take_text(text.len())?;
    let mut out = Vec::new();
    let mut add = |part: &str| {
        budget.take(1)?;
        out.push(Item::text(part));
        Ok(())
    };
    let limit = parts.unwrap_or(usize::MAX);
    if by.is_empty() {
        let mut rest = text;
        for n in 1.. {
            let Some(first) = rest.chars().next() else { break };
            let (part, after) = if n >= limit { (rest, "") } else { rest.split_at(first.len_utf8()) };
            if limit > 0 {
                add(part)?;
            }
            rest = after;
        }
    } else {
        text.splitn(limit, by).try_for_each(add)?;
    }
    Ok(Item::list(out))
}

/// The texts of a list with a separator between them.
pub(crate) fn join<'a>(list: &List<'a>, by: &str, budget: &mut Budget) -> Result<Item<'a>> {
    let mut out = String::new();
    for (n, item) in list.iter().enumerate() {
        budget.take(1)?;
        let Item::Text(text) = item? else {
            return Err(EvalError::Type("join() takes a list of strings".to_owned()));
        };
        budget.fits(out.len() + text.len() + by.len())?;
        budget.take_text(text.len() + by.len())?;
        if n > 0 {
            out.push_str(by);
        }
        out.push_str(&text);
    }
    Ok(Item::text(Rc::<str>::from(out)))
}

/// The characters from `start` to before `end`, or to the end.
pub(crate) fn substring<'a>(text: &str, start: usize, end: Option<usize>, budget: &mut Budget) -> Result<Item<'a>> {
    budget.take_text(text.len())?;
    let place = |n: usize| text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(n);
    match (place(start), end.map_or(Some(text.len()), place)) {
        (Some(start), Some(end)) if start <= end => Ok(Item::text(&text[start..end])),
        _ => Err(EvalError::Value("substring() reaches beyond the string".to_owned())),
    }
}

/// Where a text begins within another, in characters, or -1.
pub(crate) fn index_of<'a>(text: &str, what: &str) -> Item<'a> {
    text.find(what).map_or(Item::int(-1), |at| Item::count(text[..at].chars().count()))
}
