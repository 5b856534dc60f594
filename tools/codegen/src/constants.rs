//! Replaces a script's constants by their values. A local of a script is set on every call, and a local that a
//! function refers to costs an allocation each time; a number in its place costs nothing.
//!
//! A constant is a local in capitals that is set once, to a number or a string.

use std::collections::BTreeMap;

/// The script with every constant replaced, and without their definitions.
pub(crate) fn in_place(body: &str) -> String {
    let mut known = BTreeMap::new();
    let mut rest = String::with_capacity(body.len());
    for line in body.lines() {
        match definitions(line) {
            Some(found) => known.extend(found),
            None => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    replaced(&rest, &known)
}

/// The constants of a line, if it defines constants and nothing else.
fn definitions(line: &str) -> Option<Vec<(String, String)>> {
    let (names, values) = line.strip_prefix("local ")?.split_once(" = ")?;
    let names: Vec<&str> = names.split(", ").collect();
    let values: Vec<&str> = if names.len() == 1 { vec![values] } else { values.split(", ").collect() };
    let capitals = |name: &&str| name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    let literal = |value: &&str| {
        let text = value.len() > 1 && value.starts_with('\'') && value.ends_with('\'');
        text || (!value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()))
    };
    let all = names.len() == values.len() && names.iter().all(capitals) && values.iter().all(literal);
    all.then(|| names.iter().zip(&values).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

/// Replaces whole words outside of strings.
fn replaced(body: &str, known: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '\'' => text_end(rest),
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        };
        let (word, behind) = rest.split_at(end);
        out.push_str(known.get(word).map_or(word, String::as_str));
        rest = behind;
    }
    out
}

/// The end of the string that begins here.
fn text_end(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stand_where_they_are_used() {
        let script = "local TIME, ENDED = 1, 8\nlocal TABLE = '\\2\\0'\nlocal NOW = redis.call('TIME')\n\
                      if TIMED == TIME and x == TABLE and y ~= 'a\\'ENDED' then return string.byte(TABLE, ENDED) end\n";
        let wanted = "local NOW = redis.call('TIME')\n\
                      if TIMED == 1 and x == '\\2\\0' and y ~= 'a\\'ENDED' then return string.byte('\\2\\0', 8) end\n";
        assert_eq!(in_place(script), wanted);
    }

    #[test]
    fn what_is_computed_or_in_small_letters_stays() {
        for script in ["local NOW = f()\n", "local t = 1\n", "local A, B = 1, f()\n", "local A = -1\n"] {
            assert_eq!(in_place(script), script);
        }
    }
}
