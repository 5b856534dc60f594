//! The state file of a stack: written by `muster dev` and by `muster stack from-compose`, read by every
//! other command, by tests and by chaos tools. It holds the API key and the passwords of the stores, so
//! only its owner may read it. A reader never sees half of it: it is replaced by a rename.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The processes of a stack, and their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// What runs the processes, if it is not `muster dev`: `compose`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The name of the compose project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
    pub(crate) api_key: String,
    pub(crate) redis_url: String,
    pub(crate) nats_url: String,
    pub(crate) processes: Vec<Process>,
}

/// One process of the stack; addresses that it does not have are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) service: String,
    pub(crate) pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grpc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
    /// The client address of a Redis or NATS node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) addr: Option<String>,
    /// The monitoring address of a NATS node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) monitor: Option<String>,
    /// The container that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
}

impl Stack {
    /// The default path.
    pub(crate) fn default_path() -> PathBuf {
        PathBuf::from(".muster/stack.json")
    }

    /// Reads the state file; `None` when there is no such file.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Option<Stack>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let stack = serde_json::from_slice(&text).with_context(|| format!("{} is not a state file", path.display()))?;
        Ok(Some(stack))
    }

    /// Replaces the state file in one step.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        replace_private(path, &text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// HTTP addresses of all gateways, in order.
    pub(crate) fn gateways(&self) -> Vec<String> {
        self.processes.iter().filter(|p| p.service == "gateway").filter_map(|p| p.http.clone()).collect()
    }
}

/// Writes a file that only its owner may read. Other processes see either the old file or the new one.
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sample() -> Stack {
        let gateway = Process {
            name: "gateway-1".into(),
            service: "gateway".into(),
            pid: 7,
            http: Some("http://127.0.0.1:8081".into()),
            admin: Some("http://127.0.0.1:9092".into()),
            ..Process::default()
        };
        let redis = Process { name: "redis-1".into(), service: "redis".into(), pid: 8, ..Process::default() };
        Stack {
            api_key: "k".into(),
            redis_url: "redis://127.0.0.1:1".into(),
            nats_url: "nats://127.0.0.1:2".into(),
            processes: vec![gateway, redis],
            ..Stack::default()
        }
    }

    #[test]
    fn the_state_file_survives_a_round_trip_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack.json");
        assert_eq!(Stack::read(&path).unwrap(), None);
        sample().write(&path).unwrap();
        sample().write(&path).unwrap();
        assert_eq!(Stack::read(&path).unwrap(), Some(sample()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no half-written file stays behind");
    }

    #[test]
    fn addresses_that_do_not_exist_are_left_out() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["processes"][1], serde_json::json!({"name": "redis-1", "service": "redis", "pid": 8}));
        assert_eq!(json["processes"][0]["http"], "http://127.0.0.1:8081");
        assert_eq!(sample().gateways(), ["http://127.0.0.1:8081"]);
    }

    #[test]
    fn a_file_that_is_no_state_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack.json");
        fs::write(&path, "{}").unwrap();
        let error = Stack::read(&path).unwrap_err();
        assert!(format!("{error:#}").contains("stack.json is not a state file"), "{error:#}");
    }
}
