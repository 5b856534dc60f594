//! How a command ends: what it says to a person, and the exit code a script reads.
//! Knows the contract's codes; leaves to others what went wrong.

use std::process::ExitCode;

/// The exit codes of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Something went wrong.
    Error = 1,
    /// The command was not understood.
    Usage = 2,
    /// No such job or key.
    NotFound = 3,
    /// The command worked, the job did not.
    JobFailed = 4,
}

/// Why a command did not end well, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: Code,
}

impl Failure {
    /// An error that the user may do something about, once told.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: Code::Error }
    }

    /// The arguments make no sense together.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(message).with_code(Code::Usage)
    }

    /// Adds the line that says what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Ends the process with another code.
    pub(crate) fn with_code(mut self, code: Code) -> Failure {
        self.code = code;
        self
    }
}

/// Says on standard error how it ended, and gives the code for the shell.
pub(crate) fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error:#}");
    let (hint, code) = judge(&error);
    if let Some(hint) = hint {
        eprintln!("hint:  {hint}");
    }
    ExitCode::from(code as u8)
}

/// Hint and code of the nearest [`Failure`] in the chain; a plain error has code 1.
fn judge(error: &anyhow::Error) -> (Option<&str>, Code) {
    match error.downcast_ref::<Failure>() {
        Some(failure) => (failure.hint.as_deref(), failure.code),
        None => (None, Code::Error),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_failure_keeps_its_code_and_hint_under_added_context() {
        let inner: anyhow::Result<()> = Err(Failure::new("gone").hint("look").with_code(Code::NotFound).into());
        let error = inner.context("reading the job").unwrap_err();
        assert_eq!(judge(&error), (Some("look"), Code::NotFound));
        assert_eq!(format!("{error:#}"), "reading the job: gone");
        assert_eq!(judge(&anyhow::anyhow!("plain")), (None, Code::Error));
    }
}
