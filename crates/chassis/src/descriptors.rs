//! The number of file descriptors that this process may have.
//!
//! At its start, a process raises the limit to what the system allows. Most systems give 1,024 for the sake of programs
//! that use `select`, which Muster does not, and every connection needs a descriptor.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// Unauthenticated connections to the API may hold one of this many descriptors, and those to the admin port one of this
/// many. Together they leave a quarter to known clients, the stores and files.
const SHARE_OF_STRANGERS: u64 = 2;
const SHARE_OF_ADMIN: u64 = 4;

/// Raises the soft limit to the hard one.
pub(crate) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        Ok((soft, hard))
    });
    match raised {
        Ok((soft, hard)) => info!(event = "descriptors", before = soft, limit = hard, "file descriptors"),
        Err(fault) => warn!(event = "descriptors", detail = %fault, "the limit of file descriptors cannot be raised"),
    }
}

/// How many connections to the API may stay open on which no client has authenticated yet.
pub(crate) fn share_of_strangers() -> usize {
    one_of(SHARE_OF_STRANGERS)
}

/// How many connections to the admin port may stay open. Nobody authenticates there.
pub(crate) fn share_of_admin() -> usize {
    one_of(SHARE_OF_ADMIN)
}

fn one_of(share: u64) -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft);
    usize::try_from(limit / share).unwrap_or(usize::MAX)
}
