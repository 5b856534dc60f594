//! The shapes of settings that change at run time.

use std::collections::BTreeMap;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type, schema::SchemaType},
};

/// The run-time settings of the cluster.
#[derive(ToSchema)]
pub(crate) struct Config {
    /// The version, as in the `ETag`; 0 if no setting was ever written.
    version: u64,
    /// When the settings were last written.
    updated_at: Option<String>,
    /// The values by name.
    settings: BTreeMap<String, String>,
}

/// The value of a setting. A number or a flag is the same as its text; `null` means that the setting is not given.
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
    /// The name of this replica.
    instance: String,
    /// The version of the run-time settings that this replica uses.
    version: u64,
    /// The settings, in the order of their names.
    items: Vec<EffectiveSetting>,
    /// The settings of all other live replicas of all services; absent while Redis does not answer.
    others: Option<Vec<OtherConfig>>,
}

/// Every setting of another replica.
#[derive(ToSchema)]
pub(crate) struct OtherConfig {
    /// `muster-gateway` or `muster-scheduler`.
    service: String,
    /// The name of the replica.
    instance: String,
    /// When the replica announced its settings.
    seen_at: String,
    /// The settings, in the order of their names; empty if the version of the replica does not announce them.
    items: Vec<EffectiveSetting>,
}

/// One setting.
#[derive(ToSchema)]
pub(crate) struct EffectiveSetting {
    /// The name in files and in `PUT /api/v1/config`.
    name: String,
    /// The environment variable.
    variable: String,
    /// The value, with secrets masked; absent if the setting has no value.
    value: Option<String>,
    /// `default`, `file`, `environment`, `flag` or `run time`.
    source: String,
    /// Whether `PUT /api/v1/config` may change the setting.
    live: bool,
}
