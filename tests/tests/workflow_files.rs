//! `muster workflow` on files: definitions are checked and drawn without a server.

use std::{
    fs,
    process::{Command, Output},
};

use anyhow::{Context, Result};
use muster_testkit::bin;
use serde_json::Value;

const GOOD: &str = "steps:\n  - {id: a, job: {topic: mail.send}}\n  - {id: b, needs: [a], delay: {ms: 5}}\n";
const BAD: &str = "steps:\n  - {id: a, job: {topc: mail.send}}\n  - {id: b, when: steps.a.result == 1, set: 1}\n";

fn muster(folder: &tempfile::TempDir, args: &[&str]) -> Result<(i32, String, String)> {
    let Output { status, stdout, stderr } =
        Command::new(bin("muster")).args(args).current_dir(folder.path()).env_remove("MUSTER_URL").output()?;
    Ok((status.code().context("no exit code")?, String::from_utf8(stdout)?, String::from_utf8(stderr)?))
}

fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("good.yaml"), GOOD)?;
    fs::write(folder.path().join("bad.yaml"), BAD)?;
    Ok(folder)
}

#[test]
fn a_definition_is_validated_without_a_server() -> Result<()> {
    let folder = folder()?;
    let (code, out, err) = muster(&folder, &["workflow", "validate", "good.yaml"])?;
    assert_eq!((code, out.as_str(), err.as_str()), (0, "good.yaml: valid, 2 steps\n", ""));

    let (code, out, err) = muster(&folder, &["workflow", "validate", "good.yaml", "bad.yaml"])?;
    assert_eq!(code, 1);
    let places: Vec<&str> = out.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["good.yaml", "bad.yaml:2:18", "bad.yaml:2:19", "bad.yaml:3:19"], "{out}");
    assert!(err.contains("1 of 2 definitions have faults"), "{err}");
    Ok(())
}

#[test]
fn programs_get_faults_as_json() -> Result<()> {
    let folder = folder()?;
    let (code, out, _) = muster(&folder, &["workflow", "validate", "bad.yaml", "-o", "json"])?;
    let said: Value = serde_json::from_str(&out)?;
    assert_eq!((code, &said["valid"]), (1, &Value::Bool(false)));
    let unknown = &said["files"][0]["faults"][1];
    assert_eq!(unknown["code"], "unknown_field");
    assert_eq!(unknown["pointer"], "/steps/0/job/topc");
    assert_eq!((unknown["line"].as_u64(), unknown["column"].as_u64()), (Some(2), Some(19)));
    Ok(())
}

#[test]
fn a_definition_is_drawn_without_a_server() -> Result<()> {
    let folder = folder()?;
    let (code, out, _) = muster(&folder, &["workflow", "graph", "good.yaml"])?;
    assert_eq!(code, 0);
    assert!(out.starts_with("flowchart TD\n") && out.contains("s_a --> s_b"), "{out}");
    let (code, out, _) = muster(&folder, &["workflow", "graph", "good.yaml", "--format", "svg"])?;
    assert_eq!(code, 0);
    assert!(out.starts_with("<svg ") && out.ends_with("</svg>\n"), "{out}");
    let (code, _, err) = muster(&folder, &["workflow", "graph", "bad.yaml"])?;
    assert!(code == 1 && err.contains("bad.yaml:2:19: `topc` is not a field here; did you mean `topic`?"), "{err}");
    Ok(())
}
