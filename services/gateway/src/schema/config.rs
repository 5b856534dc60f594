//! The shapes of settings that change at run time.

use std::collections::BTreeMap;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type, schema::SchemaType},
};

/// What the cluster was told at run time.
#[derive(ToSchema)]
pub(crate) struct Config {
    /// As in the `ETag`; 0 if nobody ever told it anything.
    version: u64,
    /// When it was last told.
    updated_at: Option<String>,
    /// By name.
    settings: BTreeMap<String, String>,
}

/// A setting's value: a number or a flag is the same as its text, and null is as if it were not given.
pub(crate) struct SettingValue;

impl PartialSchema for SettingValue {
    fn schema() -> RefOr<Schema> {
        let types = [Type::String, Type::Number, Type::Boolean, Type::Null];
        ObjectBuilder::new().schema_type(SchemaType::from_iter(types)).into()
    }
}

impl ToSchema for SettingValue {}

/// Every setting of one gateway, and of the other replicas.
#[derive(ToSchema)]
pub(crate) struct EffectiveConfig {
    /// `muster-gateway`.
    service: String,
    /// This replica's name.
    instance: String,
    /// Of what the cluster was told, as far as this replica knows.
    version: u64,
    /// In the order of their names.
    items: Vec<EffectiveSetting>,
    /// Every other replica of every service that lives; absent while Redis is away.
    others: Option<Vec<OtherConfig>>,
}

/// Every setting of another replica.
#[derive(ToSchema)]
pub(crate) struct OtherConfig {
    /// `muster-gateway` or `muster-scheduler`.
    service: String,
    /// Its name.
    instance: String,
    /// When it said so.
    seen_at: String,
    /// In the order of their names; empty if its version does not tell.
    items: Vec<EffectiveSetting>,
}

/// One setting.
#[derive(ToSchema)]
pub(crate) struct EffectiveSetting {
    /// In files and in `PUT /config`.
    name: String,
    /// Its environment variable.
    variable: String,
    /// Secrets are masked; absent if it has none.
    value: Option<String>,
    /// `default`, `file`, `environment`, `flag` or `run time`.
    source: String,
    /// Whether `PUT /config` may change it.
    live: bool,
}
