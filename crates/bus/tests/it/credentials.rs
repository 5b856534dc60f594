//! Servers that require credentials. The client library ignores credentials in an address.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use muster_bus::{Bus, BusSettings};
use muster_testkit::{free_port, until};

use crate::fixture::{SOON, loose_bus};

/// A server that requires a secret; without JetStream unless its configuration enables it.
pub(crate) struct Guarded {
    port: u16,
    process: Child,
}

impl Guarded {
    pub(crate) fn start(secret: &[&str]) -> Guarded {
        let port = free_port();
        let process = Command::new("nats-server")
            .args(["-a", "127.0.0.1", "-p", &port.to_string()])
            .args(secret)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server is installed");
        Guarded { port, process }
    }

    pub(crate) async fn lets_in(&self, who: &str) -> Bus {
        let bus = loose_bus(&format!("nats://{who}127.0.0.1:{}", self.port)).await;
        until(SOON, "a connection", async || bus.is_connected().then_some(())).await;
        bus
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn user_and_password_come_from_the_address() {
    let server = Guarded::start(&["--user", "bob", "--pass", "p@ss"]);
    server.lets_in("bob:p%40ss@").await;
    let stranger = loose_bus(&format!("nats://127.0.0.1:{}", server.port)).await;
    let waited = tokio::time::timeout(Duration::from_millis(500), stranger.connected()).await;
    assert!(waited.is_err(), "the server really asks");
}

#[tokio::test]
async fn a_token_comes_from_the_address() {
    let server = Guarded::start(&["--auth", "s3cret"]);
    server.lets_in("s3cret@").await;
}

#[tokio::test]
async fn any_server_of_a_list_will_do() {
    let server = Guarded::start(&["--auth", "s3cret"]);
    let nobody = free_port();
    server.lets_in(&format!("s3cret@127.0.0.1:{nobody},")).await;
}

#[test]
fn settings_do_not_show_the_address() {
    let shown = format!("{:?}", BusSettings::new("nats://bob:hunter2@host", "me"));
    assert!(!shown.contains("hunter2"), "{shown}");
}
