//! The shape of what the doctor found.

use utoipa::ToSchema;

/// The findings of the doctor about the stores.
#[derive(ToSchema)]
pub(crate) struct Diagnosis {
    /// The worst level of all findings: `ok`, `warn` or `error`.
    level: String,
    /// The gateway that examined the stores.
    instance: String,
    /// The findings, the worst first.
    items: Vec<FindingView>,
}

/// The finding of one check.
#[derive(ToSchema)]
pub(crate) struct FindingView {
    /// `ok`; `warn`: it works, but with weaker promises than it could give; `error`: jobs may be lost, or nothing
    /// works.
    level: String,
    /// The name of the check.
    check: String,
    /// The server or stream that was checked.
    place: String,
    /// What was found.
    found: String,
    /// What to do about it; absent if nothing needs to be done.
    mend: Option<String>,
}
