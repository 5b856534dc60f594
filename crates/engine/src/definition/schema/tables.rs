//! The format as data: every object with its fields, in the order of the reference page.
//!
//! The reader (`read`) and this table say the same; `the_reader_takes_every_field_that_the_schema_names` compares them. The
//! file is long because it is the whole format, a few lines for each field, and no code.

use crate::definition::read;

/// The bounds of spans and delays, in milliseconds.
pub(super) const SPAN: (u64, u64) = (1, *muster_domain::job::bounds::SPAN_MS.end());
pub(super) const DELAY: (u64, u64) = (0, *muster_domain::job::bounds::DELAY_MS.end());
/// The pattern of ids of steps, and of the names of branches and items.
pub(super) const ID: &str = "^[A-Za-z][A-Za-z0-9_]{0,63}$";
const DOTTED: &str = r"^(?=.{1,128}$)[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*$";
const SIGNAL: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

/// What a field holds.
pub(super) enum Shape {
    /// Text without expressions.
    Text { most: usize },
    /// Text of a fixed form.
    Name(&'static str),
    /// A bare expression.
    Expression,
    /// A bare expression that is true or false.
    Condition,
    /// Any value, with expressions in its strings.
    Value,
    /// A string with expressions in it.
    Interpolated,
    /// A number of milliseconds, or one expression.
    Millis,
    /// A whole number.
    Integer(u64, u64),
    /// A number.
    Number(f64, f64),
    /// True or false.
    Bool,
    /// One of some words.
    Words(&'static [&'static str]),
    /// `all`, `any` or a number.
    Wait,
    /// A JSON Schema.
    Schema,
    /// One of the other objects.
    Object(&'static str),
    /// A compensation.
    Compensate,
    /// A list of steps.
    Steps,
    /// Lists of steps by name.
    Branches,
    /// A list.
    List { of: &'static Shape, least: usize },
    /// Labels.
    Labels { most: usize },
}

/// One field.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) required: bool,
    /// What holds if it is absent, for the page.
    pub(super) usual: &'static str,
    pub(super) doc: &'static str,
}

/// Which fields exclude each other.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    None,
    /// Exactly one of these.
    OneOf(&'static [&'static str]),
    /// `when` and `steps`, or `else`.
    Branch,
}

/// An object of the format.
pub(super) struct Object {
    pub(super) name: &'static str,
    /// The headline on the page.
    pub(super) title: &'static str,
    pub(super) doc: &'static str,
    pub(super) rule: Rule,
    pub(super) fields: &'static [Field],
}

const fn need(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { name, shape, required: true, usual: "", doc }
}

const fn may(name: &'static str, shape: Shape, usual: &'static str, doc: &'static str) -> Field {
    Field { name, shape, required: false, usual, doc }
}

const fn span(name: &'static str, usual: &'static str, doc: &'static str) -> Field {
    may(name, Shape::Integer(SPAN.0, SPAN.1), usual, doc)
}

/// The kinds of steps.
pub(super) const KINDS: &[&str] = &[
    "job",
    "approval",
    "delay",
    "wait_signal",
    "set",
    "switch",
    "parallel",
    "loop",
    "workflow",
    "notify",
    "fail",
    "steps",
];

/// Every object; the first is the definition itself.
pub(super) const OBJECTS: &[Object] = &[
    Object {
        name: "definition",
        title: "The definition",
        doc: "A workflow: a graph of steps, and what holds for the whole run.",
        rule: Rule::None,
        fields: &[
            may("$schema", Shape::Text { most: 1_000 }, "", "The address of the schema, for editors. Ignored."),
            may("description", Shape::Text { most: read::MOST_DESCRIPTION }, "", "A text for people."),
            may("expressions", Shape::Words(&["cel"]), "`cel`", "The language of the expressions."),
            may("input", Shape::Schema, "anything", "The JSON Schema of a run's input. References lead into itself."),
            span("timeout_ms", "none", "How long a run may take."),
            may("concurrency", Shape::Object("concurrency"), "no limit", "How many runs go on at once."),
            may(
                "on_failure",
                Shape::Words(&["cancel", "finish"]),
                "`cancel`",
                "What becomes of steps that run when one fails.",
            ),
            may("defaults", Shape::Object("defaults"), "", "What job steps have that say nothing themselves."),
            need("steps", Shape::Steps, "The steps."),
            may("output", Shape::Value, "null", "The run's output. It sees all steps of the outer list."),
        ],
    },
    Object {
        name: "concurrency",
        title: "`concurrency`",
        doc: "How many runs of a workflow go on at once. A run holds its slot from start to end, compensation included.",
        rule: Rule::None,
        fields: &[
            may(
                "key",
                Shape::Expression,
                "one for all runs",
                "Runs with the same value count together. It sees `input`, `run` and `now`.",
            ),
            need(
                "max",
                Shape::Integer(*read::CONCURRENCY.start() as u64, *read::CONCURRENCY.end() as u64),
                "How many runs.",
            ),
            may(
                "when_full",
                Shape::Words(&["queue", "reject", "cancel_oldest"]),
                "`queue`",
                "What happens to a start that finds no room: it waits, it is refused (409), or the oldest run is cancelled, queued ones first.",
            ),
        ],
    },
    Object {
        name: "defaults",
        title: "`defaults`",
        doc: "What job steps have that say nothing themselves.",
        rule: Rule::None,
        fields: &[
            may("retry", Shape::Object("retry"), "", "Retries; a step's own fields go first."),
            span("timeout_ms", "none", "The time limit of the whole step."),
        ],
    },
    Object {
        name: "step",
        title: "A step",
        doc: "One step. Exactly one of its fields says what it does: `job`, `approval`, `delay`, `wait_signal`, `set`, `switch`, `parallel`, `loop`, `workflow`, `notify`, `fail` or `steps`.",
        rule: Rule::OneOf(KINDS),
        fields: &[
            need(
                "id",
                Shape::Name(ID),
                "The name in expressions (`steps.<id>`). Unique in the whole definition, nested steps included.",
            ),
            may(
                "needs",
                Shape::List { of: &Shape::Name(ID), least: 0 },
                "none",
                "Steps of the same list that must have ended before. A step without needs starts when its list starts.",
            ),
            may(
                "run_if",
                Shape::Words(&["success", "failure", "always"]),
                "`success`",
                "Which ends of the needed steps let it start.",
            ),
            may("when", Shape::Condition, "true", "Evaluated when the step would start. False: it is skipped."),
            may("for_each", Shape::Object("for_each"), "", "Runs the step once per item of a list."),
            may(
                "retry",
                Shape::Object("retry"),
                "of the definition, the topic, the system",
                "How failed attempts are retried. A job retries itself; a `workflow` and nested steps are repeated whole.",
            ),
            span(
                "timeout_ms",
                "`defaults`, for jobs",
                "How long the whole step may take, retries included. Of a job, it is the deadline.",
            ),
            may(
                "on_error",
                Shape::Words(&["fail", "continue"]),
                "`fail`",
                "Whether a failure of the step fails the list that it is in.",
            ),
            may(
                "compensate",
                Shape::Compensate,
                "",
                "What undoes the step. `self`, on a `workflow` step that waits: the compensations of the sub-run. Inside a loop, the loop's `max` is at most 100.",
            ),
            may("labels", Shape::Labels { most: 32 }, "", "Labels of the step. They hold no expressions."),
            may("job", Shape::Object("job"), "", "Submits a job and waits for its end. Result: the job's."),
            may(
                "approval",
                Shape::Object("approval"),
                "",
                "Waits for people to approve. Result: who decided, when, with which note.",
            ),
            may("delay", Shape::Object("delay"), "", "Waits for a time."),
            may("wait_signal", Shape::Object("wait_signal"), "", "Waits for a signal. Result: its body."),
            may("set", Shape::Value, "", "Computes a value. Result: the value."),
            may(
                "switch",
                Shape::List { of: &Shape::Object("branch"), least: 1 },
                "",
                "Runs the first branch whose condition holds, or none. Result: the branch taken.",
            ),
            may("parallel", Shape::Object("parallel"), "", "Runs branches beside each other."),
            may("loop", Shape::Object("loop"), "", "Repeats steps. Result: the last state."),
            may(
                "workflow",
                Shape::Object("workflow"),
                "",
                "Starts a run of another workflow. Result: its output, or `{run_id}`.",
            ),
            may("notify", Shape::Object("notify"), "", "Emits an event of a type of your own."),
            may("fail", Shape::Object("fail"), "", "Fails."),
            may(
                "steps",
                Shape::Steps,
                "",
                "Runs a list of steps of its own, as a step that can be repeated, bounded and compensated as a whole.",
            ),
        ],
    },
    Object {
        name: "for_each",
        title: "`for_each`",
        doc: "Runs a step once per item of a list. Results are in the order of the items. An empty list succeeds; more than 10,000 items are refused.",
        rule: Rule::None,
        fields: &[
            need("items", Shape::Expression, "The list."),
            may(
                "as",
                Shape::Name(ID),
                "`item`",
                "The item's name in expressions; `item` works too. `index` counts from 0.",
            ),
            may("max_parallel", Shape::Integer(1, read::MOST_ITEMS as u64), "20", "How many items run at once."),
            may("tolerate", Shape::Object("tolerate"), "`{count: 0}`", "How many failed items are still a success."),
            may(
                "min_success",
                Shape::Integer(1, read::MOST_ITEMS as u64),
                "all",
                "So many successes are enough: the rest is cancelled.",
            ),
            may(
                "collect",
                Shape::Expression,
                "",
                "A value of at most 256 bytes kept of each item. It sees the item, `steps.<this step>` as the item ended, and the steps inside.",
            ),
        ],
    },
    Object {
        name: "tolerate",
        title: "`tolerate`",
        doc: "How many failed items are still a success.",
        rule: Rule::OneOf(&["count", "percent"]),
        fields: &[
            may("count", Shape::Integer(0, read::MOST_ITEMS as u64), "", "So many."),
            may("percent", Shape::Integer(0, 100), "", "So many of a hundred."),
        ],
    },
    Object {
        name: "retry",
        title: "`retry`",
        doc: "How failed attempts are retried. What is absent comes from the topic's settings, or the system's defaults.",
        rule: Rule::None,
        fields: &[
            may("max_attempts", Shape::Integer(1, 1_000), "", "How many attempts may be started."),
            may("backoff", Shape::Object("backoff"), "", "The waits between attempts."),
        ],
    },
    Object {
        name: "backoff",
        title: "`backoff`",
        doc: "The waits between attempts.",
        rule: Rule::None,
        fields: &[
            may("initial_ms", Shape::Integer(DELAY.0, DELAY.1), "", "The wait before the second attempt."),
            may("factor", Shape::Number(1.0, 100.0), "", "Each further wait is the one before times this."),
            may("max_ms", Shape::Integer(DELAY.0, DELAY.1), "", "The longest wait."),
            may("jitter", Shape::Number(0.0, 1.0), "", "The share of a wait by which it is moved up or down."),
        ],
    },
    Object {
        name: "compensate",
        title: "`compensate`",
        doc: "What undoes a step, if the run fails, times out or is cancelled. Its input is computed when the step succeeded; it sees the step itself.",
        rule: Rule::None,
        fields: &[
            need("job", Shape::Object("job"), "The job."),
            may(
                "when",
                Shape::Words(&["succeeded", "started"]),
                "`succeeded`",
                "Whether it undoes only success, or also a step that started and ended otherwise.",
            ),
            may("retry", Shape::Object("retry"), "of the topic, the system", "Its retries."),
        ],
    },
    Object {
        name: "job",
        title: "`job`",
        doc: "The submit fields that make sense in a run. `retry` and the deadline (`timeout_ms`) are the step's.",
        rule: Rule::None,
        fields: &[
            need("topic", Shape::Name(DOTTED), "The kind of work. Never an expression."),
            may("payload", Shape::Value, "none", "The payload."),
            may(
                "priority",
                Shape::Words(&["critical", "high", "normal", "low"]),
                "`normal`",
                "The order in which jobs leave the backlog.",
            ),
            may(
                "labels",
                Shape::Labels { most: 32 },
                "",
                "The job's labels; their values may hold expressions. `run_id` and `step` are added.",
            ),
            may("requires", Shape::Labels { most: 16 }, "", "What a worker must provide. No expressions."),
            may(
                "concurrency_key",
                Shape::Interpolated,
                "none",
                "Only a limited number of jobs with the same key run at once.",
            ),
            may("delay_ms", Shape::Millis, "0", "How long the job waits before it may run."),
            span("start_within_ms", "none", "How long after its submit the job must have started."),
            may("timeout_ms", Shape::Integer(1, u32::MAX as u64), "of the topic", "How long one attempt may take."),
            may(
                "on_lost_lease",
                Shape::Words(&["retry", "fail"]),
                "`retry`",
                "What happens when a worker falls silent.",
            ),
            may(
                "durability",
                Shape::Words(&["memory", "replicated", "fsynced"]),
                "`memory`",
                "How safely the submit is stored.",
            ),
        ],
    },
    Object {
        name: "approval",
        title: "`approval`",
        doc: "A question to people. Rejected: the step fails with `rejected`; too late: with `approval_expired`.",
        rule: Rule::None,
        fields: &[
            need("title", Shape::Interpolated, "What they are asked."),
            may(
                "from",
                Shape::List { of: &Shape::Text { most: 256 }, least: 0 },
                "everybody who may approve",
                "Who may vote, as in `group:sales`.",
            ),
            may("quorum", Shape::Integer(1, 100), "1", "How many must approve."),
            span("expires_ms", "none", "How long they have."),
            may("show", Shape::Value, "", "What they are shown besides the title."),
        ],
    },
    Object {
        name: "delay",
        title: "`delay`",
        doc: "A wait. A time in the past ends it at once.",
        rule: Rule::OneOf(&["ms", "until"]),
        fields: &[
            may("ms", Shape::Millis, "", "So many milliseconds from the step's start."),
            may("until", Shape::Interpolated, "", "Until a time (RFC 3339), or an expression that gives one."),
        ],
    },
    Object {
        name: "wait_signal",
        title: "`wait_signal`",
        doc: "A wait for a message to the run. One that came before the step started is taken at once.",
        rule: Rule::None,
        fields: &[
            need("name", Shape::Name(SIGNAL), "The signal's name."),
            span("timeout_ms", "none", "How long to wait; then the step fails with `signal_timeout`."),
            may("schema", Shape::Schema, "anything", "The JSON Schema of the signal's body."),
        ],
    },
    Object {
        name: "branch",
        title: "A branch of `switch`",
        doc: "`when` with `steps`, or `else`, which is the last branch.",
        rule: Rule::Branch,
        fields: &[
            may("when", Shape::Condition, "", "The condition."),
            may("steps", Shape::Steps, "", "The steps."),
            may("else", Shape::Steps, "", "The steps if no condition holds."),
        ],
    },
    Object {
        name: "parallel",
        title: "`parallel`",
        doc: "Branches that run beside each other.",
        rule: Rule::None,
        fields: &[
            need("branches", Shape::Branches, "Lists of steps by name."),
            may(
                "wait",
                Shape::Wait,
                "`all`",
                "How many must succeed: `all`, `any` (one), or a number. Once there are enough, the rest is cancelled.",
            ),
        ],
    },
    Object {
        name: "loop",
        title: "`loop`",
        doc: "Steps that repeat. After each iteration `state.next` is computed, then `until`. `max` reached without it: the step fails with `loop_exhausted`.",
        rule: Rule::None,
        fields: &[
            need(
                "steps",
                Shape::Steps,
                "The steps of one iteration. They see `state` and `index`, which counts from 0.",
            ),
            may("state", Shape::Object("state"), "null", "What one iteration hands to the next."),
            need(
                "until",
                Shape::Condition,
                "Ends the loop when true. It sees the new `state`, and the iteration's steps.",
            ),
            need("max", Shape::Integer(1, 10_000), "The most iterations."),
        ],
    },
    Object {
        name: "state",
        title: "`state` of a loop",
        doc: "What one iteration hands to the next.",
        rule: Rule::None,
        fields: &[
            may("init", Shape::Value, "null", "The first state."),
            may(
                "next",
                Shape::Value,
                "the state as it is",
                "The next state. It sees the old `state`, and the iteration's steps.",
            ),
        ],
    },
    Object {
        name: "workflow",
        title: "`workflow`",
        doc: "A run of another workflow. The step ends as that run does.",
        rule: Rule::None,
        fields: &[
            need("name", Shape::Name(DOTTED), "Its name. Never an expression."),
            may("version", Shape::Integer(1, u32::MAX as u64), "the latest", "Its version."),
            may("input", Shape::Value, "null", "Its input."),
            may("wait", Shape::Bool, "true", "False: the step ends at once, with `{run_id}`."),
        ],
    },
    Object {
        name: "notify",
        title: "`notify`",
        doc: "An event of your own, as CloudEvents has it.",
        rule: Rule::None,
        fields: &[
            need("type", Shape::Name(SIGNAL), "Its type; not `muster.…`."),
            may("data", Shape::Value, "null", "Its data."),
        ],
    },
    Object {
        name: "fail",
        title: "`fail`",
        doc: "Fails the step.",
        rule: Rule::None,
        fields: &[
            need("code", Shape::Name("^[a-z][a-z0-9_]{0,63}$"), "The error's code."),
            may("message", Shape::Interpolated, "", "The error's message."),
        ],
    },
];
