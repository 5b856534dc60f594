//! The shape of what the doctor found.

use utoipa::ToSchema;

/// What was found about the stores.
#[derive(ToSchema)]
pub(crate) struct Diagnosis {
    /// The worst of all: `ok`, `warn` or `error`.
    level: String,
    /// The gateway that looked.
    instance: String,
    /// The worst first.
    items: Vec<FindingView>,
}

/// One thing that was looked at.
#[derive(ToSchema)]
pub(crate) struct FindingView {
    /// `ok`; `warn`: it works, and promises less than it could; `error`: jobs may be lost, or nothing works.
    level: String,
    /// What was looked at, in one word.
    check: String,
    /// Which server or stream.
    place: String,
    /// What was found.
    found: String,
    /// What to do about it; absent if all is well.
    mend: Option<String>,
}
