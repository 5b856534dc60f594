//! The shapes of keys.

use utoipa::ToSchema;

/// A key to create.
#[derive(ToSchema)]
pub(crate) struct KeyRequest {
    /// A name for people, at most 100 bytes.
    name: Option<String>,
    /// The tenant of the key; the caller's by default.
    tenant: Option<String>,
    /// What the key may do.
    scopes: Vec<String>,
    /// Topics, with `*` for any characters, at most three in each; no entry means all topics.
    topics: Option<Vec<String>>,
    /// When the key expires.
    expires_at: Option<String>,
}

/// How a key gets a new secret.
#[derive(ToSchema)]
pub(crate) struct RotateRequest {
    /// How long the old secret keeps working; one hour by default, at most 30 days.
    overlap_ms: Option<u64>,
}

/// A key without its secret.
#[derive(ToSchema)]
pub(crate) struct KeyView {
    /// The id of the key: the middle part of `mst_<id>_<secret>`.
    id: String,
    /// The name, for people.
    name: String,
    /// The tenant of the key.
    tenant: String,
    /// What the key may do.
    scopes: Vec<String>,
    /// The topics that the key covers; no entry means all topics.
    topics: Vec<String>,
    /// When the key was created.
    created_at: String,
    /// When the key expires.
    expires_at: Option<String>,
}

/// A key with its secret.
#[derive(ToSchema)]
pub(crate) struct NewKey {
    /// The id of the key.
    id: String,
    /// `mst_<id>_<secret>`. No other response contains it.
    key: String,
    /// The name, for people.
    name: String,
    /// The tenant of the key.
    tenant: String,
    /// What the key may do.
    scopes: Vec<String>,
    /// The topics that the key covers; no entry means all topics.
    topics: Vec<String>,
    /// When the key was created.
    created_at: String,
    /// When the key expires.
    expires_at: Option<String>,
    /// Until when the old secret works, after a rotation.
    previous_until: Option<String>,
}

/// A list of keys.
#[derive(ToSchema)]
pub(crate) struct KeyList {
    /// The keys, by id.
    items: Vec<KeyView>,
}

/// The key of the request.
#[derive(ToSchema)]
pub(crate) struct WhoAmI {
    /// The id of the key.
    key_id: String,
    /// The name, for people.
    name: String,
    /// The tenant that the request acts for.
    tenant: String,
    /// Whether the key may act for any tenant.
    all_tenants: bool,
    /// What the key may do.
    scopes: Vec<String>,
    /// The topics that the key covers; no entry means all topics.
    topics: Vec<String>,
    /// When the key expires.
    expires_at: Option<String>,
}
