//! What is wrong with a definition: each fault with its place, a stable code and one sentence. Readers and checks name
//! a place by its JSON pointer; the tree of the text knows line and column.

use std::fmt;

use muster_expr::{Fault, TemplateFault};

use super::tree::{Broken, Mark, Node, What};

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
    /// A stable code: [`FaultCode::as_str`].
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
    ($($variant:ident = $text:literal $meaning:literal,)*) => {
        /// The kinds of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FaultCode { $(#[doc = $meaning] $variant,)* }
        impl FaultCode {
            /// Every code, in the order of the docs.
            pub const ALL: &'static [FaultCode] = &[$(FaultCode::$variant,)*];
            /// The code as clients see it.
            pub fn as_str(self) -> &'static str { match self { $(FaultCode::$variant => $text,)* } }
            /// What it means.
            pub fn meaning(self) -> &'static str { match self { $(FaultCode::$variant => $meaning,)* } }
        }
    };
}

codes! {
    Syntax = "syntax" "The text is neither YAML nor JSON, or uses a part of YAML that is not taken.",
    TooLarge = "too_large" "The definition exceeds its size, or its aliases do.",
    TooDeep = "too_deep" "Values or steps nest too deeply.",
    DuplicateKey = "duplicate_key" "An object has a key twice.",
    BadNumber = "bad_number" "A number has no exact form in JSON.",
    UnknownField = "unknown_field" "An object has a field that does not exist there.",
    MissingField = "missing_field" "A required field is absent.",
    WrongType = "wrong_type" "A value has another type than its field.",
    InvalidValue = "invalid_value" "A value has the right type and is not allowed.",
    NotLiteral = "not_literal" "An expression stands where only a fixed value is allowed.",
    StepKind = "step_kind" "A step does nothing, or more than one thing.",
    DuplicateId = "duplicate_id" "Two steps have the same id.",
    UnknownStep = "unknown_step" "`needs` or an expression names a step that does not exist.",
    StepNotVisible = "step_not_visible" "An expression or `needs` names a step that exists and cannot be seen from there.",
    Cycle = "cycle" "Steps need each other in a circle.",
    SelfCall = "self_call" "A workflow starts itself.",
    TooManySteps = "too_many_steps" "The definition has too many steps.",
    Expression = "expression" "An expression has a fault of syntax, of names or of types.",
    InvalidSchema = "invalid_schema" "A value that must be a JSON Schema is none.",
}

/// Collects faults. Knows the tree, and so the place of every pointer.
pub(super) struct Faults<'a> {
    root: &'a Node,
    list: Vec<DefinitionFault>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(root: &'a Node) -> Faults<'a> {
        Faults { root, list: Vec::new() }
    }

    /// Notes a fault of the value at `pointer`, or of what is missing there.
    pub(super) fn add(&mut self, pointer: &str, code: FaultCode, message: impl Into<String>) {
        let mark = self.root.find(pointer).0.mark;
        self.note(mark, pointer, code, message.into());
    }

    /// Notes a fault of the key that leads to `pointer`.
    pub(super) fn add_key(&mut self, pointer: &str, code: FaultCode, message: impl Into<String>) {
        let (node, entry) = self.root.find(pointer);
        self.note(entry.map_or(node.mark, |entry| entry.mark), pointer, code, message.into());
    }

    /// Notes a fault of the expression at `pointer`, which is all of a string but its outer blanks.
    pub(super) fn add_expr(&mut self, pointer: &str, fault: &Fault) {
        self.add_expr_as(pointer, FaultCode::Expression, fault);
    }

    /// As [`add_expr`](Faults::add_expr), with a code of its own.
    pub(super) fn add_expr_as(&mut self, pointer: &str, code: FaultCode, fault: &Fault) {
        let node = self.root.find(pointer).0;
        self.note(within(node, fault), pointer, code, fault.message.clone());
    }

    /// Notes a fault of a template that stands at `pointer`.
    pub(super) fn add_template(&mut self, pointer: &str, fault: &TemplateFault) {
        self.add_expr(&format!("{pointer}{}", fault.pointer), &fault.fault);
    }

    fn note(&mut self, at: Mark, pointer: &str, code: FaultCode, message: String) {
        let (line, column) = (at.line, at.column);
        let fault = DefinitionFault { line, column, pointer: pointer.to_owned(), code: code.as_str(), message };
        if self.list.len() < MOST_FAULTS && !self.list.contains(&fault) {
            self.list.push(fault);
        }
    }

    /// Whether no fault was noted.
    pub(super) fn none(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether more faults would be dropped.
    pub(super) fn full(&self) -> bool {
        self.list.len() >= MOST_FAULTS
    }

    /// The faults, in the order of their places.
    pub(super) fn into_list(mut self) -> Vec<DefinitionFault> {
        self.list.sort_by(|a, b| (a.line, a.column).cmp(&(b.line, b.column)));
        self.list
    }
}

/// The place of a fault whose line and column count inside a string.
fn within(node: &Node, fault: &Fault) -> Mark {
    let What::Text(text) = &node.what else { return node.mark };
    let line_start: usize = text.value.split_inclusive('\n').take(fault.line.max(1) as usize - 1).map(str::len).sum();
    let line = text.value.get(line_start..).unwrap_or_default();
    let in_line = line.char_indices().nth(fault.column.max(1) as usize - 1).map_or(line.len(), |(n, _)| n);
    text.place(node.mark, line_start + in_line)
}

impl From<Broken> for DefinitionFault {
    fn from(broken: Broken) -> DefinitionFault {
        let Broken { at, code, message } = broken;
        let (line, column) = (at.line, at.column);
        DefinitionFault { line, column, pointer: String::new(), code: code.as_str(), message }
    }
}

/// A JSON pointer to `name` inside `at`.
pub(super) fn join(at: &str, name: &str) -> String {
    match name.contains(['~', '/']) {
        true => format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")),
        false => format!("{at}/{name}"),
    }
}

/// The word of `known` that `given` is probably meant to be, as the end of a sentence; empty if there is none.
pub(super) fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    if given.len() > 64 {
        return String::new();
    }
    let lower = given.to_lowercase();
    let nearest = known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&lower, &word.to_lowercase()), word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance);
    nearest.map_or_else(String::new, |(_, word)| format!("; did you mean `{word}`?"))
}
