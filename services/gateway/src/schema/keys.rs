//! The shapes of keys.

use utoipa::ToSchema;

/// A key to be made.
#[derive(ToSchema)]
pub(crate) struct KeyRequest {
    /// For people.
    name: Option<String>,
    /// The tenant of the key; the caller's unless given.
    tenant: Option<String>,
    /// Of `submit, read, payloads, control, worker, approve, policy, admin`.
    scopes: Vec<String>,
    /// Topics with `*` for any characters; none means all.
    topics: Option<Vec<String>>,
    /// When the key expires.
    expires_at: Option<String>,
}

/// A key's new secret.
#[derive(ToSchema)]
pub(crate) struct RotateRequest {
    /// How long the old secret works on: an hour unless given, 30 days at most.
    overlap_ms: Option<u64>,
}

/// A key without its secret.
#[derive(ToSchema)]
pub(crate) struct KeyView {
    /// The middle part of `mst_<id>_<secret>`.
    id: String,
    /// For people.
    name: String,
    /// The tenant of the key.
    tenant: String,
    /// What it may do.
    scopes: Vec<String>,
    /// Which topics it may touch; none means all.
    topics: Vec<String>,
    /// When the key was made.
    created_at: String,
    /// When the key expires.
    expires_at: Option<String>,
}

/// A key that was just made.
#[derive(ToSchema)]
pub(crate) struct NewKey {
    /// Its id.
    id: String,
    /// `mst_<id>_<secret>`: shown this once.
    key: String,
    /// For people.
    name: String,
    /// The tenant of the key.
    tenant: String,
    /// What it may do.
    scopes: Vec<String>,
    /// Which topics it may touch; none means all.
    topics: Vec<String>,
    /// When the key was made.
    created_at: String,
    /// When the key expires.
    expires_at: Option<String>,
    /// Until when the secret before works, if this one replaces it.
    previous_until: Option<String>,
}

/// Keys.
#[derive(ToSchema)]
pub(crate) struct KeyList {
    /// By id.
    items: Vec<KeyView>,
}

/// The presented key.
#[derive(ToSchema)]
pub(crate) struct WhoAmI {
    /// Its id.
    key_id: String,
    /// For people.
    name: String,
    /// For whom it acts now.
    tenant: String,
    /// Whether it may act for any.
    all_tenants: bool,
    /// What it may do.
    scopes: Vec<String>,
    /// Which topics it may touch; none means all.
    topics: Vec<String>,
    /// When the key expires.
    expires_at: Option<String>,
}
