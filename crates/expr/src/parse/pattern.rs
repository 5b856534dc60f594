//! Regular expressions: those of RE2, as CEL demands, compiled once and bounded.
//!
//! In RE2 `\d`, `\w`, `\s` and `\b` know ASCII only. Here they are rewritten to say so: the classes of all of Unicode
//! would also make a short pattern compile to megabytes.

use regex::{Error, Regex, RegexBuilder};

/// The largest compiled regular expression, in bytes.
const MAX_SIZE: usize = 64 * 1024;

/// Compiles a pattern, or says what is wrong with it.
pub(super) fn compile(written: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(&ascii(written));
    builder.size_limit(MAX_SIZE).dfa_size_limit(MAX_SIZE).nest_limit(32);
    builder.build().map_err(|error| match error {
        Error::CompiledTooBig(limit) => format!("it compiles to more than {limit} bytes"),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.strip_prefix("error: ").unwrap_or(last).to_owned()
        }
    })
}

/// The pattern with the classes of ASCII written out.
fn ascii(written: &str) -> String {
    let (mut out, mut chars, mut class) = (String::with_capacity(written.len()), written.chars(), 0_usize);
    while let Some(c) = chars.next() {
        match c {
            '[' => class += 1,
            ']' => class = class.saturating_sub(1),
            _ => {}
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('s') => out.push_str(r"[\t\n\f\r ]"),
            Some('S') => out.push_str(r"[^\t\n\f\r ]"),
            Some('b') if class == 0 => out.push_str(r"(?-u:\b)"),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_know_ascii_only() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢٣", false),
            (r"^\w+$", "ab_9", true),
            (r"^\w+$", "é", false),
            (r"^\W$", "é", true),
            (r"^[\w.-]+$", "a.b-c", true),
            (r"^[^\s]+$", "a b", false),
            (r"\bfoo\b", "a foo b", true),
            (r"^.\S$", "éé", true),
            (r"^\\d$", r"\d", true),
            (r"^\pL$", "é", true),
            (r"^\w{3,20}@\w{3,20}$", "abc@example", true),
        ] {
            let compiled = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            assert_eq!(compiled.is_match(text), matches, "{pattern} on {text}");
        }
    }

    #[test]
    fn a_fault_says_what_is_wrong() {
        assert_eq!(compile("(").map(|_| ()), Err("unclosed group".to_owned()));
        assert!(compile("(?=a)").is_err_and(|why| why.contains("look-around")));
        assert!(compile(r"(a)\1").is_err_and(|why| why.contains("backreferences")));
        assert!(compile(r"\pL{500}").is_err_and(|why| why.contains("compiles to more than")));
        assert!(compile("\\").is_err());
    }
}
