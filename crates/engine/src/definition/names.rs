//! Names that a definition fixes: of workflows, signals and events. They are safe inside a key, a subject and a path.

fn fits(text: &str, first: impl Fn(u8) -> bool, rest: impl Fn(u8) -> bool, most: usize) -> bool {
    text.len() <= most && text.bytes().next().is_some_and(first) && text.bytes().all(rest)
}

/// Judges the name of a workflow: parts of `[a-z0-9][a-z0-9_-]*` joined by single dots, 128 characters at most.
pub fn check_workflow_name(text: &str) -> Result<(), &'static str> {
    match muster_domain::Topic::parse(text) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err("a workflow's name is parts of [a-z0-9][a-z0-9_-]* joined by single dots, 128 characters at most")
        }
    }
}

/// Judges the name of a signal: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
pub fn check_signal_name(text: &str) -> Result<(), &'static str> {
    let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    match fits(text, |b| b.is_ascii_alphanumeric(), rest, 128) {
        true => Ok(()),
        false => Err("a signal's name is [A-Za-z0-9][A-Za-z0-9._-]*, 128 characters at most"),
    }
}

/// Judges the type of a user's event: as a signal's name; `muster.` begins the types of Muster's own events.
pub fn check_event_type(text: &str) -> Result<(), &'static str> {
    if text == "muster" || text.starts_with("muster.") {
        return Err("types that begin with `muster.` are those of Muster's own events");
    }
    check_signal_name(text).map_err(|_| "an event's type is [A-Za-z0-9][A-Za-z0-9._-]*, 128 characters at most")
}
