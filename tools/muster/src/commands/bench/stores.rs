//! The counters of Redis and NATS, summed over all of their nodes.

use anyhow::Context;
use serde_json::Value;

use crate::{
    commands::dev::probe,
    redis::{Cli, Servers},
    stack::{Process, Stack},
};

/// The number of messages that passed through NATS so far, in and out.
pub(super) async fn messages(stack: &Stack) -> anyhow::Result<u64> {
    let mut sum = 0;
    for node in of(stack, "nats") {
        let url = node.monitor.as_deref().context("the state file has no monitoring address of NATS")?;
        let page = probe::http_get(url.strip_prefix("http://").unwrap_or(url), "/varz").await?;
        let page: Value = serde_json::from_str(&page)?;
        sum += ["in_msgs", "out_msgs"].iter().filter_map(|name| page[*name].as_u64()).sum::<u64>();
    }
    Ok(sum)
}

/// The number of commands that Redis ran so far, including those inside scripts.
pub(super) async fn commands(stack: &Stack) -> anyhow::Result<u64> {
    sum(stack, "INFO stats", &["total_commands_processed"]).await
}

/// The bytes that Redis uses for the data and its indexes, without the current buffers of its clients and its log.
pub(super) async fn bytes(stack: &Stack) -> anyhow::Result<u64> {
    let used = sum(stack, "INFO memory", &["used_memory"]).await?;
    let passing = ["mem_clients_normal", "mem_aof_buffer", "mem_clients_slaves", "mem_replication_backlog"];
    Ok(used.saturating_sub(sum(stack, "INFO memory", &passing).await?))
}

/// How many Redis nodes are rewriting their log, or are about to.
pub(super) async fn rewrites(stack: &Stack) -> anyhow::Result<u64> {
    sum(stack, "INFO persistence", &["aof_rewrite_in_progress", "aof_rewrite_scheduled"]).await
}

async fn sum(stack: &Stack, ask: &str, names: &[&str]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for node in of(stack, "redis") {
        let addr = node.addr.as_deref().context("a Redis node without an address")?;
        sum += field_sum(&ask_redis(stack, addr, ask).await?, names);
    }
    Ok(sum)
}

/// Asks a node of a stack with a password through `redis-cli`, which can log in.
async fn ask_redis(stack: &Stack, addr: &str, ask: &str) -> anyhow::Result<String> {
    let servers = Servers::parse(&stack.redis_url)?;
    let like = servers.nodes.first().context("no Redis in the state file")?;
    if like.password.is_none() {
        return probe::redis_ask(addr, ask).await;
    }
    let (host, port) = addr.rsplit_once(':').context("an address without a port")?;
    let words: Vec<&str> = ask.split(' ').collect();
    Cli::at(like.sibling(host, port.parse()?))?.ask(&words).await
}

fn field_sum(info: &str, names: &[&str]) -> u64 {
    let value =
        |line: &str| line.split_once(':').filter(|(name, _)| names.contains(name))?.1.trim().parse::<u64>().ok();
    info.lines().filter_map(value).sum()
}

fn of<'a>(stack: &'a Stack, service: &'a str) -> impl Iterator<Item = &'a Process> {
    stack.processes.iter().filter(move |process| process.service == service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let info = "# Memory\r\nused_memory:100\r\nused_memory_rss:7\r\nmem_aof_buffer:8\r\n";
        assert_eq!(field_sum(info, &["used_memory"]), 100);
        assert_eq!(field_sum(info, &["used_memory", "mem_aof_buffer"]), 108);
        assert_eq!(field_sum(info, &["none"]), 0);
    }
}
