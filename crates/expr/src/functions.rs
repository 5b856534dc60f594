//! The functions of the language: one row each, with what they take and give.

use crate::Type;

/// A function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) what: What,
    pub(crate) style: Style,
    /// What it takes, the receiver first. The last one may be repeated if `repeated`.
    pub(crate) args: &'static [Arg],
    /// How many of the last arguments may be left out.
    pub(crate) optional: usize,
    pub(crate) repeated: bool,
    pub(crate) gives: fn() -> Type,
}

/// How a function is called: `f(x)`, `x.f()`, or either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Global,
    Method,
    Either,
}

/// What an argument must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    Any,
    Text,
    Whole,
    Boolish,
    Bytesish,
    Scalar,
    Sized,
    Texts,
    Time,
    Timeish,
    TimeOrSpan,
    Spanish,
    Numeric,
    NumbersOrList,
    Pattern,
    Zone,
}

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    LowerAscii,
    UpperAscii,
    Trim,
    Replace,
    Split,
    Join,
    Substring,
    IndexOf,
    Text,
    Int,
    Uint,
    Double,
    Bool,
    Bytes,
    Dyn,
    Timestamp,
    Duration,
    Min,
    Max,
    Get(Part),
}

/// What a getter of a timestamp or duration gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    FullYear,
    Month,
    Date,
    DayOfMonth,
    DayOfWeek,
    DayOfYear,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

impl Arg {
    /// Whether a value of this type can be such an argument.
    pub(crate) fn takes(self, ty: &Type) -> bool {
        use Type::{Any, Bool, Bytes, Double, Duration, Int, List, Object, String, Timestamp, Uint};
        let number = matches!(ty, Int | Uint | Double);
        *ty == Any
            || match self {
                Arg::Any => true,
                Arg::Text | Arg::Pattern | Arg::Zone => *ty == String,
                Arg::Whole => matches!(ty, Int | Uint),
                Arg::Boolish => matches!(ty, Bool | String),
                Arg::Bytesish => matches!(ty, Bytes | String),
                Arg::Scalar => number || matches!(ty, Bool | String | Bytes | Timestamp | Duration),
                Arg::Sized => matches!(ty, String | Bytes | List(_) | Object { .. }),
                Arg::Texts => matches!(ty, List(of) if matches!(**of, String | Any)),
                Arg::Time => *ty == Timestamp,
                Arg::Timeish => matches!(ty, Timestamp | String | Int | Uint),
                Arg::TimeOrSpan => matches!(ty, Timestamp | Duration),
                Arg::Spanish => matches!(ty, Duration | String),
                Arg::Numeric => number || matches!(ty, String | Timestamp),
                Arg::NumbersOrList => number || matches!(ty, List(of) if matches!(**of, Int | Uint | Double | Any)),
            }
    }

    /// What a message calls it.
    pub(crate) fn told(self) -> &'static str {
        match self {
            Arg::Any => "any value",
            Arg::Text | Arg::Pattern | Arg::Zone => "a string",
            Arg::Whole => "an int",
            Arg::Boolish => "a bool or a string",
            Arg::Bytesish => "bytes or a string",
            Arg::Scalar => "a bool, a number, a string, bytes, a timestamp or a duration",
            Arg::Sized => "a string, bytes, a list or a map",
            Arg::Texts => "a list of strings",
            Arg::Time => "a timestamp: write timestamp(…)",
            Arg::Timeish => "a string, an int or a timestamp",
            Arg::TimeOrSpan => "a timestamp or a duration: write timestamp(…)",
            Arg::Spanish => "a string or a duration",
            Arg::Numeric => "a number, a string or a timestamp",
            Arg::NumbersOrList => "a number or a list of numbers",
        }
    }
}

impl Function {
    /// The row of a function by its name and how it is called.
    pub(crate) fn find(name: &str, method: bool) -> Option<&'static Function> {
        FUNCTIONS.iter().find(|f| f.name == name && f.style != if method { Style::Global } else { Style::Method })
    }

    /// Whether it is called with so many arguments, the receiver included.
    pub(crate) fn takes_count(&self, count: usize) -> bool {
        count + self.optional >= self.args.len() && (self.repeated || count <= self.args.len())
    }

    /// What the argument at this place must be.
    pub(crate) fn arg(&self, place: usize) -> Arg {
        self.args.get(place).or(self.args.last()).copied().unwrap_or(Arg::Any)
    }
}

const fn row(name: &'static str, what: What, style: Style, args: &'static [Arg], gives: fn() -> Type) -> Function {
    Function { name, what, style, args, optional: 0, repeated: false, gives }
}

const fn optional(mut function: Function, optional: usize) -> Function {
    function.optional = optional;
    function
}

const fn repeated(mut function: Function) -> Function {
    function.repeated = true;
    function
}

const fn getter(name: &'static str, part: Part) -> Function {
    optional(row(name, What::Get(part), Style::Method, &[Arg::Time, Arg::Zone], || Type::Int), 1)
}

const fn span_getter(name: &'static str, part: Part) -> Function {
    optional(row(name, What::Get(part), Style::Method, &[Arg::TimeOrSpan, Arg::Zone], || Type::Int), 1)
}

use Arg::Text as T;
use Style::{Either, Global, Method};

/// Every function.
pub(crate) static FUNCTIONS: &[Function] = &[
    row("size", What::Size, Either, &[Arg::Sized], || Type::Int),
    row("contains", What::Contains, Method, &[T, T], || Type::Bool),
    row("startsWith", What::StartsWith, Method, &[T, T], || Type::Bool),
    row("endsWith", What::EndsWith, Method, &[T, T], || Type::Bool),
    row("matches", What::Matches, Either, &[T, Arg::Pattern], || Type::Bool),
    row("lowerAscii", What::LowerAscii, Method, &[T], || Type::String),
    row("upperAscii", What::UpperAscii, Method, &[T], || Type::String),
    row("trim", What::Trim, Method, &[T], || Type::String),
    optional(row("replace", What::Replace, Method, &[T, T, T, Arg::Whole], || Type::String), 1),
    optional(row("split", What::Split, Method, &[T, T, Arg::Whole], || Type::list(Type::String)), 1),
    optional(row("join", What::Join, Method, &[Arg::Texts, T], || Type::String), 1),
    optional(row("substring", What::Substring, Method, &[T, Arg::Whole, Arg::Whole], || Type::String), 1),
    row("indexOf", What::IndexOf, Method, &[T, T], || Type::Int),
    row("string", What::Text, Global, &[Arg::Scalar], || Type::String),
    row("int", What::Int, Global, &[Arg::Numeric], || Type::Int),
    row("uint", What::Uint, Global, &[Arg::Numeric], || Type::Uint),
    row("double", What::Double, Global, &[Arg::Numeric], || Type::Double),
    row("bool", What::Bool, Global, &[Arg::Boolish], || Type::Bool),
    row("bytes", What::Bytes, Global, &[Arg::Bytesish], || Type::Bytes),
    row("dyn", What::Dyn, Global, &[Arg::Any], || Type::Any),
    row("timestamp", What::Timestamp, Global, &[Arg::Timeish], || Type::Timestamp),
    row("duration", What::Duration, Global, &[Arg::Spanish], || Type::Duration),
    repeated(row("min", What::Min, Global, &[Arg::NumbersOrList], || Type::Double)),
    repeated(row("max", What::Max, Global, &[Arg::NumbersOrList], || Type::Double)),
    getter("getFullYear", Part::FullYear),
    getter("getMonth", Part::Month),
    getter("getDate", Part::Date),
    getter("getDayOfMonth", Part::DayOfMonth),
    getter("getDayOfWeek", Part::DayOfWeek),
    getter("getDayOfYear", Part::DayOfYear),
    span_getter("getHours", Part::Hours),
    span_getter("getMinutes", Part::Minutes),
    span_getter("getSeconds", Part::Seconds),
    span_getter("getMilliseconds", Part::Milliseconds),
];
