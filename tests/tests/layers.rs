//! The layers of the workspace: which crate may use which. A crate that uses a forbidden layer fails here, with the
//! names of both. `modules` checks the modules within each crate.

#[path = "layers/modules.rs"]
mod modules;

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

/// (folder, workspace crates that it may use, external crates that it must never use).
const LAYERS: &[(&str, &[&str], &[&str])] = &[
    ("crates/domain", &[], &["tokio", "redis", "async-nats", "prost", "axum"]),
    ("crates/expr", &[], &["tokio", "redis", "async-nats", "prost", "axum"]),
    ("crates/engine", &["domain", "expr"], &["tokio", "redis", "async-nats", "prost", "axum", "cel"]),
    ("crates/wire", &["domain"], &["tokio", "redis", "async-nats", "axum"]),
    ("crates/telemetry", &["domain"], &["redis", "async-nats", "prost"]),
    ("crates/store", &["domain", "wire", "telemetry"], &["async-nats", "prost", "axum"]),
    ("crates/bus", &["domain", "wire", "telemetry"], &["redis", "prost", "axum"]),
    ("crates/flow", &["domain", "wire", "telemetry", "store", "bus"], &["redis", "async-nats", "prost", "axum"]),
    (
        "crates/runs",
        &["domain", "engine", "wire", "telemetry", "store", "bus", "flow"],
        &["redis", "async-nats", "prost", "axum"],
    ),
    ("crates/chassis", &["telemetry"], &["redis", "async-nats", "prost"]),
    (
        "crates/replica",
        &["domain", "wire", "telemetry", "store", "bus", "flow", "chassis"],
        &["redis", "async-nats", "prost", "axum"],
    ),
    ("crates/testkit", &[], &[]),
    (
        "services/gateway",
        &["domain", "engine", "runs", "wire", "telemetry", "store", "bus", "flow", "chassis", "replica"],
        &["redis", "async-nats", "prost"],
    ),
    (
        "services/scheduler",
        &["domain", "wire", "telemetry", "store", "bus", "flow", "chassis", "replica"],
        &["redis", "async-nats", "prost", "axum"],
    ),
    (
        "services/workflow",
        &["domain", "engine", "runs", "wire", "telemetry", "store", "bus", "flow", "chassis", "replica"],
        &["redis", "async-nats", "prost", "axum"],
    ),
    ("sdk/rust", &["domain", "wire", "bus"], &["redis", "async-nats", "prost", "axum"]),
    ("tools/muster", &["domain", "engine", "sdk", "telemetry"], &["redis", "async-nats", "prost"]),
    ("tools/codegen", &["domain", "engine", "telemetry"], &["tokio", "redis", "async-nats"]),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn dependencies(folder: &str) -> Result<BTreeSet<String>> {
    let manifest: toml::Table = fs::read_to_string(root().join(folder).join("Cargo.toml"))?.parse()?;
    let table = manifest.get("dependencies").and_then(toml::Value::as_table).context("no dependencies")?;
    Ok(table.keys().cloned().collect())
}

#[test]
fn no_crate_uses_a_layer_that_it_must_not_know() -> Result<()> {
    for (folder, ours, never) in LAYERS {
        for used in dependencies(folder)? {
            if let Some(layer) = used.strip_prefix("muster-") {
                assert!(ours.contains(&layer), "{folder} must not use muster-{layer}");
            }
            assert!(!never.contains(&used.as_str()), "{folder} must not use {used}");
        }
    }
    Ok(())
}

#[test]
fn every_crate_of_the_workspace_has_its_place_in_the_layers() -> Result<()> {
    for parent in ["crates", "services"] {
        for entry in fs::read_dir(root().join(parent))? {
            let folder = format!("{parent}/{}", entry?.file_name().to_string_lossy());
            assert!(LAYERS.iter().any(|(known, _, _)| *known == folder), "{folder} has no row in LAYERS");
        }
    }
    Ok(())
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root())?.to_string_lossy().replace('\\', "/");
            found.push((name, fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// Only one file builds keys and only one builds subjects.
#[test]
fn keys_and_subjects_are_spelled_in_one_file_each() -> Result<()> {
    let mut files = Vec::new();
    for parent in ["crates", "services", "sdk", "tools/muster"] {
        sources(&root().join(parent), &mut files)?;
    }
    for (name, text) in files.iter().filter(|(name, _)| name.contains("/src/")) {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|l| !l.trim_start().starts_with("//")) {
            // The CLI's file is generated from the store's.
            if !name.ends_with("store/src/keys.rs") && name != "tools/muster/src/redis/keys.rs" {
                assert!(!line.contains("\"muster:"), "{name} spells a key: {line}");
            }
            if !name.ends_with("bus/src/subjects.rs") {
                let spelled = ["\"sys.job.", "\"sys.heartbeat", "\"sys.config", "\"sys.loop", "\"job.{"];
                assert!(!spelled.iter().any(|s| line.contains(s)), "{name} spells a subject: {line}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_error_code_has_its_page() {
    use muster_domain::{JobErrorCode, ProblemCode};
    let codes = ProblemCode::ALL.iter().map(|c| c.as_str()).chain(JobErrorCode::ALL.iter().map(|c| c.as_str()));
    for code in codes {
        let page = root().join("docs/errors").join(format!("{code}.md"));
        assert!(page.is_file(), "docs/errors/{code}.md is missing");
    }
}
