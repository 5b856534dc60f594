//! Settings of this gateway that can change while it runs.
//!
//! Knows: the settings that this process started with, and the settings that the cluster was given since; the latter
//! win. Promises: a change applies as soon as this replica learns of it, without a restart; settings that this
//! version cannot use (another version wrote them) are logged and change nothing. Leaves to others: distributing the
//! settings (`flow`), and the meaning of each value.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use muster_chassis::{Values, settings::Fault};
use muster_domain::ProblemCode;
use muster_flow::{Flow, admission::Limits};
use tokio_util::sync::CancellationToken;

use crate::{
    json::{Object, integer, text},
    problem::{Fault as FieldFault, Problem},
    settings,
};

/// The settings in effect.
pub(crate) struct Config {
    /// The settings that this process started with.
    started: Arc<Values>,
    now: ArcSwap<Values>,
}

impl Config {
    pub(crate) fn new(started: Arc<Values>) -> Config {
        Config { now: ArcSwap::new(started.clone()), started }
    }

    /// The values in effect now.
    pub(crate) fn now(&self) -> Arc<Values> {
        self.now.load_full()
    }

    /// The start values with `told` on top, if every one of them is usable.
    fn judged(&self, told: &BTreeMap<String, String>) -> Result<Values, Vec<Fault>> {
        self.started.with_run_time(told)
    }
}

/// Applies the cluster's settings now and after every change, until the gateway stops.
pub(crate) async fn obey(config: &Config, flow: &Flow, limits: &Limits, stop: &CancellationToken) {
    let mut changes = flow.settings.changes();
    let mut applied = 0;
    loop {
        changes.mark_unchanged();
        let told = flow.settings.config();
        if told.version != applied {
            applied = told.version;
            match config.judged(&told.values) {
                Ok(values) => apply(config, limits, values, told.version),
                Err(faults) => {
                    let detail = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    tracing::warn!(
                        event = "config_unusable",
                        version = told.version,
                        detail,
                        "settings stay as they were"
                    );
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

fn apply(config: &Config, limits: &Limits, values: Values, version: u64) {
    limits.set(settings::rate(&values), settings::burst(&values));
    config.now.store(Arc::new(values));
    tracing::info!(event = "config_changed", version, "settings changed at run time");
}

/// Reads a body of settings by name. A number or a boolean is read as its text.
pub(crate) fn read_values(config: &Config, body: &[u8]) -> Result<BTreeMap<String, String>, Problem> {
    let (mut told, mut faults) = (BTreeMap::new(), crate::json::Faults::default());
    for (name, raw) in Object::from_body(body)?.into_fields() {
        let raw = raw.get();
        let plain = raw == "true" || raw == "false" || integer(raw).is_some() || raw.parse::<f64>().is_ok();
        match text(raw).map(std::borrow::Cow::into_owned).or_else(|| plain.then(|| raw.to_owned())) {
            // `null` means that the setting is not given. An unknown name is kept, and refused below.
            _ if raw == "null" && config.now().shown().iter().any(|known| known.key == name) => {}
            _ if raw == "null" => drop(told.insert(name.to_string(), String::new())),
            None => faults.invalid("", &name, "must be a text, a number, true or false"),
            Some(value) => {
                if told.insert(name.to_string(), value).is_some() {
                    faults.invalid("", &name, "is given twice");
                }
            }
        }
    }
    faults.into_result()?;
    let named = |fault: Fault| {
        let unknown = fault.problem.starts_with("is not a setting");
        let code = if unknown { ProblemCode::UnknownField } else { ProblemCode::InvalidRequest };
        let hint = fault.suggestion.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        let detail = format!("{}{hint}", fault.problem);
        FieldFault { code, pointer: crate::json::join("", &fault.place), detail }
    };
    match config.judged(&told) {
        Ok(_) => Ok(told),
        Err(faults) => Err(Problem::fields(faults.into_iter().map(named).collect())),
    }
}

#[cfg(test)]
mod tests {
    use muster_chassis::settings::load;

    use super::*;

    fn config() -> Config {
        let env = [("API_RATE_LIMIT_RPS".to_owned(), "5".to_owned())].into();
        Config::new(Arc::new(load("muster-gateway", crate::SETTINGS, &[], &env).unwrap().values))
    }

    #[test]
    fn values_are_read_as_text_whatever_they_were() {
        let body = br#"{"rate_limit_rps":0.5,"rate_limit_burst":7,"topics":"declared","retention_failed":null}"#;
        let told = read_values(&config(), body).unwrap();
        let pairs: Vec<_> = told.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("rate_limit_burst", "7"), ("rate_limit_rps", "0.5"), ("topics", "declared")]);
        let values = config().judged(&told).unwrap();
        assert_eq!((settings::rate(&values), values.get(settings::TOPICS)), (0.5, "declared"));
        let shown = values.shown();
        let origin = |key: &str| shown.iter().find(|s| s.key == key).unwrap().origin.as_str();
        assert_eq!((origin("rate_limit_rps"), origin("retention_failed")), ("run time", "default"));
        assert_eq!(
            config().now().shown().iter().find(|s| s.key == "rate_limit_rps").unwrap().origin.as_str(),
            "environment"
        );
    }

    #[test]
    fn every_wrong_value_is_named() {
        for (body, pointer, code) in [
            (r#"{"rate_limit_rps":"fast"}"#, "/rate_limit_rps", ProblemCode::InvalidRequest),
            (r#"{"rate_limit_burst":0}"#, "/rate_limit_burst", ProblemCode::InvalidRequest),
            (r#"{"rate_limit_burst":[1]}"#, "/rate_limit_burst", ProblemCode::InvalidRequest),
            (r#"{"topics":"shut"}"#, "/topics", ProblemCode::InvalidRequest),
            (r#"{"retention_failed":"1s"}"#, "/retention_failed", ProblemCode::InvalidRequest),
            (r#"{"redis_url":"redis://x"}"#, "/redis_url", ProblemCode::InvalidRequest),
            (r#"{"api_key":"01234567890"}"#, "/api_key", ProblemCode::InvalidRequest),
            (r#"{"rate_limit_rp":1}"#, "/rate_limit_rp", ProblemCode::UnknownField),
            (r#"{"rate_limit_rp":null}"#, "/rate_limit_rp", ProblemCode::UnknownField),
            (r#"{"topics":"open","topics":"open"}"#, "/topics", ProblemCode::InvalidRequest),
        ] {
            let fault = &read_values(&config(), body.as_bytes()).expect_err(body).errors[0];
            assert_eq!((fault.pointer.as_str(), fault.code), (pointer, code), "{body}");
        }
        let near = read_values(&config(), br#"{"rate_limit_rp":1}"#).unwrap_err();
        assert!(near.errors[0].detail.contains("rate_limit_rps"), "{}", near.errors[0].detail);
    }
}
