//! The number of file descriptors that this process may have.
//!
//! At its start, a process raises the limit to what the system allows. Most systems give 1,024 for the sake of programs
//! that use `select`, which Muster does not, and every connection needs a descriptor.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// Unauthenticated connections may hold one of this many descriptors.
const SHARE_OF_STRANGERS: u64 = 2;

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

/// How many connections may stay open on which no client has authenticated yet.
pub(crate) fn share_of_strangers() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft);
    usize::try_from(limit / SHARE_OF_STRANGERS).unwrap_or(usize::MAX)
}
