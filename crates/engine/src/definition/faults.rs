//! What is wrong with a definition: each fault with its place, a stable code and one sentence. Readers and checks name
//! a place by its JSON pointer; the tree of the text knows line and column.

use std::fmt;

use super::tree::{Mark, Node, Text};

/// The most faults that are reported at once.
pub const MOST_FAULTS: usize = 100;

/// One fault of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionFault {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The JSON pointer (RFC 6901) of the value.
    pub pointer: String,
    /// A stable code, one of [`FaultCode`].
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
}

impl fmt::Display for DefinitionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for DefinitionFault {}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// The kinds of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FaultCode { $($(#[$doc])* $variant,)* }
        impl FaultCode {
            /// Every code, in the order of the docs.
            pub const ALL: &'static [FaultCode] = &[$(FaultCode::$variant,)*];
            /// The code as clients see it.
            pub fn as_str(self) -> &'static str { match self { $(FaultCode::$variant => $text,)* } }
            /// What the code means.
            pub fn meaning(self) -> &'static str {
                match self { $(FaultCode::$variant => concat!($($doc),*).trim_ascii_start_str(),)* }
            }
        }
    };
}

/// `concat!` takes doc comments only as literals, so the macro above passes them through here.
trait TrimStart {
    fn trim_ascii_start_str(&self) -> &str;
}

impl TrimStart for str {
    fn trim_ascii_start_str(&self) -> &str {
        self.trim_start()
    }
}
