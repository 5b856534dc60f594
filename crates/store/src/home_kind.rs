//! The kinds of homes. Each kind has keys and locks of its own.

/// A kind of thing that has homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HomeKind {
    /// Jobs; one replica looks at all shards.
    Job,
    /// Runs of workflows; each shard has an owner.
    Run,
    /// Schedules; each shard has an owner.
    Schedule,
}
