//! How a command ends: its message for a person, and the exit code for a script. Knows the contract's codes; leaves
//! to others what went wrong.

use std::process::ExitCode;

/// The exit codes of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// A general error.
    Error = 1,
    /// The arguments are invalid.
    Usage = 2,
    /// No such job, run or key.
    NotFound = 3,
    /// The command succeeded, but the job or the run did not.
    JobFailed = 4,
}

/// Why a command failed, and what the user can do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: Code,
}

impl Failure {
    /// An error with this message, with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: Code::Error }
    }

    /// An error in the arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(message).with_code(Code::Usage)
    }

    /// Adds the line that says what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Sets another exit code.
    pub(crate) fn with_code(mut self, code: Code) -> Failure {
        self.code = code;
        self
    }
}

/// Prints an error to standard error, and returns the exit code.
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
