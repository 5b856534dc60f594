//! Backups of servers without a stack: the content of the files, their permissions, what is refused, and the ways
//! from one server into a cluster and back.

use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use muster_testkit::{RedisCluster, RedisServer};

use crate::{backup, text};

const PASSWORD: &str = "hush-hush";

fn url(server: &RedisServer) -> String {
    format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port())
}

/// Stores every type that Muster uses, a key of arbitrary bytes, one that expires, and one that is not Muster's.
async fn fill(server: &RedisServer) {
    for command in [
        &["HSET", "muster:job:1", "s", "a\r\nb"][..],
        &["ZADD", "muster:due:job:3", "5", "1", "6", "2"],
        &["RPUSH", "muster:idx:default:9", "x", "y"],
        &["XADD", "muster:audit", "1-1", "f", "v"],
        &["SET", "muster:meta:version", "2"],
        &["SET", "muster:slots:default:any key\nat all", "1"],
        &["SET", "muster:unique:default:k", "1", "EX", "3600"],
        &["SET", "not:ours", "1"],
    ] {
        let said = server.cli(command).await;
        assert!(!said.contains("ERR"), "{command:?}: {said}");
    }
    for n in 0..5_000 / 50 {
        let pairs: Vec<String> = (0..50).flat_map(|k| [format!("muster:job:b{n}-{k}"), "x".repeat(20)]).collect();
        let command: Vec<&str> = ["MSET"].into_iter().chain(pairs.iter().map(String::as_str)).collect();
        assert_eq!(server.cli(&command).await, "OK");
    }
}

/// The digest of everything that a server holds.
async fn digest(server: &RedisServer) -> String {
    server.cli(&["DEBUG", "DIGEST"]).await
}

async fn secured() -> RedisServer {
    let server = RedisServer::start_with(&["--enable-debug-command", "local"]).await;
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORD]).await;
    server
}

/// Creates a backup of a filled server in the folder.
async fn backed_up(dir: &Path) -> RedisServer {
    let server = RedisServer::start_with(&["--enable-debug-command", "local"]).await;
    fill(&server).await;
    assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", PASSWORD]).await, "OK");
    let made = backup(&["create", text(dir), "--from", &url(&server)]).await;
    assert!(made.ok, "{}", made.text);
    assert!(!made.text.contains(PASSWORD), "{}", made.text);
    server
}

#[tokio::test]
async fn a_backup_is_private_whole_and_comes_back_to_the_last_byte() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a");
    let source = backed_up(&dir).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().all(|path| mode(path) == 0o600), "records hold payloads and hashed keys");
    let manifest = fs::read_to_string(dir.join("manifest.json")).unwrap();
    assert!(!manifest.contains(PASSWORD));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no half of a backup stays behind");
    let again = backup(&["create", text(&dir), "--from", &url(&source)]).await;
    assert!(!again.ok && again.text.contains("exists already"), "{}", again.text);

    let verified = backup(&["verify", text(&dir)]).await;
    assert!(verified.ok && verified.text.contains("can be restored"), "{}", verified.text);

    let target = secured().await;
    let restored = backup(&["restore", text(&dir), "--to", &url(&target)]).await;
    assert!(restored.ok, "{}", restored.text);
    for server in [&source, &target] {
        server.cli(&["-a", PASSWORD, "CONFIG", "SET", "requirepass", ""]).await;
    }
    source.cli(&["DEL", "muster:meta:backup"]).await;
    assert_eq!(digest(&source).await, digest(&target).await, "every value is as it was");
    // A snapshot that is only copied beside a log disappears at the next restart. What was restored through the
    // server stays.
    target.stop();
    target.restart().await;
    assert_eq!(digest(&source).await, digest(&target).await, "the target's own log has it");
    let ttl: i64 = target.cli(&["TTL", "muster:unique:default:k"]).await.parse().unwrap();
    assert!((3_000..=3_600).contains(&ttl), "a life span goes on where it was: {ttl}");
}

#[tokio::test]
async fn a_backup_that_is_truncated_or_altered_is_refused_by_name_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a");
    let _source = backed_up(&dir).await;
    let target = secured().await;
    let file = dir.join("redis.rdb");
    let whole = fs::read(&file).unwrap();
    let refused = async |why: &str| {
        for args in [vec!["verify", text(&dir)], vec!["restore", text(&dir), "--to", &url(&target)]] {
            let said = backup(&args).await;
            assert!(!said.ok && said.text.contains("redis.rdb") && said.text.contains(why), "{args:?}: {}", said.text);
        }
        assert_eq!(target.cli(&["-a", PASSWORD, "--no-auth-warning", "DBSIZE"]).await, "0", "nothing was written");
    };
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused("truncated").await;

    let mut altered = OpenOptions::new().write(true).open(&file).unwrap();
    altered.write_all(&whole).unwrap();
    altered.seek(SeekFrom::Start(whole.len() as u64 / 2)).unwrap();
    altered.write_all(&[whole[whole.len() / 2] ^ 1]).unwrap();
    drop(altered);
    refused("altered").await;

    // The file is cut before its checksum was taken: only a server that loads it can detect that.
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let manifest = fs::read_to_string(dir.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["files"][0]["bytes"] = (whole.len() / 2).into();
    let sum = std::process::Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    manifest["files"][0]["sha256"] = String::from_utf8_lossy(&sum).split(' ').next().unwrap().into();
    fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    refused("cannot be loaded").await;

    fs::write(&file, &whole).unwrap();
    manifest["files"][0]["bytes"] = whole.len().into();
    let sum = std::process::Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    manifest["files"][0]["sha256"] = String::from_utf8_lossy(&sum).split(' ').next().unwrap().into();
    manifest["files"][0]["counts"]["kinds"]["job"] = 7.into();
    fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    refused("job: 5001 instead of 7").await;

    fs::remove_file(&file).unwrap();
    refused("is missing").await;
}

#[tokio::test]
async fn a_target_that_is_not_empty_or_not_let_in_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a");
    let _source = backed_up(&dir).await;
    let target = RedisServer::start().await;
    target.cli(&["SET", "mine", "1"]).await;
    let address = format!("redis://127.0.0.1:{}", target.port());
    let said = backup(&["restore", text(&dir), "--to", &address]).await;
    assert!(!said.ok && said.text.contains("is not empty") && said.text.contains("has 1 keys"), "{}", said.text);
    assert_eq!(target.cli(&["DBSIZE"]).await, "1");

    let locked = secured().await;
    let wrong = format!("redis://:not-it@127.0.0.1:{}", locked.port());
    let said = backup(&["restore", text(&dir), "--to", &wrong]).await;
    assert!(!said.ok && said.text.contains("WRONGPASS") && !said.text.contains("not-it"), "{}", said.text);
}

#[tokio::test]
async fn a_backup_of_one_server_goes_into_a_cluster_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (one, many) = (folder.path().join("one"), folder.path().join("many"));
    let source = backed_up(&one).await;
    let cluster = RedisCluster::start_steady().await;
    let said = backup(&["restore", text(&one), "--to", &cluster.url()]).await;
    assert!(said.ok, "{}", said.text);
    let mut keys = 0;
    for node in 0..6 {
        if cluster.cli(node, &["INFO", "replication"]).await.contains("role:master") {
            keys += cluster.cli(node, &["DBSIZE"]).await.parse::<u64>().unwrap();
        }
    }
    assert_eq!(keys, 5_008);

    let said = backup(&["create", text(&many), "--from", &cluster.url()]).await;
    assert!(said.ok, "{}", said.text);
    assert_eq!(fs::read_dir(&many).unwrap().count(), 4, "a snapshot for each primary, and the manifest");
    let target = RedisServer::start_with(&["--enable-debug-command", "local", "--appendonly", "no"]).await;
    let said = backup(&["restore", text(&many), "--to", &format!("redis://127.0.0.1:{}", target.port())]).await;
    assert!(said.ok, "{}", said.text);
    assert!(said.text.contains("keeps no log"), "a target without a log is named: {}", said.text);
    source.cli(&["-a", PASSWORD, "CONFIG", "SET", "requirepass", ""]).await;
    for server in [&source, &target] {
        server.cli(&["DEL", "muster:meta:backup"]).await;
    }
    assert_eq!(digest(&source).await, digest(&target).await);
}
