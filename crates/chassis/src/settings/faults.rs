//! Faults in the settings: all of them at once, each with a suggestion if a known name is close. Also warnings about
//! settings that are odd but not wrong.

use std::fmt;

/// One fault in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The place of the fault: a flag, a variable, a key in a file.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
    /// The name that may have been meant.
    pub suggestion: Option<String>,
}

impl Fault {
    pub(super) fn new(place: impl Into<String>, problem: impl Into<String>) -> Fault {
        Fault { place: place.into(), problem: problem.into(), suggestion: None }
    }

    /// Adds the nearest of `known` to `given`, if one is close.
    pub(super) fn suggest<'a>(self, given: &str, known: impl IntoIterator<Item = &'a str>) -> Fault {
        Fault { suggestion: nearest(given, known).map(str::to_owned), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)?;
        match &self.suggestion {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

/// A setting that is odd but not wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A variable with a Muster prefix that no setting has; Kubernetes injects some.
    Unknown {
        /// The name of the variable.
        variable: String,
        /// The name that may have been meant.
        meant: Option<String>,
    },
    /// A setting that was given and has no effect yet.
    Unused {
        /// The setting's environment variable, whatever source gave it.
        setting: &'static str,
        /// What is missing.
        missing: &'static str,
    },
}

impl Warning {
    /// The name of the warning in the log.
    pub const fn event(&self) -> &'static str {
        match self {
            Warning::Unknown { .. } => "unknown_variable",
            Warning::Unused { .. } => "unused_setting",
        }
    }

    /// The variable that the warning is about.
    pub fn setting(&self) -> &str {
        match self {
            Warning::Unknown { variable, .. } => variable,
            Warning::Unused { setting, .. } => setting,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Unknown { variable, meant: None } => write!(f, "{variable}: unknown variable"),
            Warning::Unknown { variable, meant: Some(meant) } => {
                write!(f, "{variable}: unknown variable; did you mean {meant}?")
            }
            Warning::Unused { setting, missing } => write!(f, "{setting}: not yet used, this has no effect: {missing}"),
        }
    }
}

/// Everything that is wrong with the settings; never empty.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The service that was to start.
    pub service: &'static str,
    /// Each fault, in the order flags, environment, file.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.faults.len() == 1 { "fault" } else { "faults" };
        writeln!(f, "{}: {} {noun} in the settings", self.service, self.faults.len())?;
        for fault in &self.faults {
            writeln!(f, "  - {fault}")?;
        }
        write!(f, "Try --help for all settings.")
    }
}

impl std::error::Error for Faults {}

/// The known word nearest to the given one, if it is close enough for a typing error.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&given, &word.to_lowercase()), word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}
