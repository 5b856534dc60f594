//! Many jobs from a file, one JSON object per line, sent in batches. A line that is not a JSON object ends the run
//! before anything is sent. A job that the gateway refuses is reported with its line, and the others go on. Every
//! item has an idempotency key, so that a batch may be repeated.

use std::{io::Read, path::Path};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::super::{Caller, ask};
use crate::{
    api::Call,
    outcome::Failure,
    output::{self, Format, cell},
};

/// The most jobs and bytes of one batch, below the API's limits.
const MAX_ITEMS: usize = 500;
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A job of the file, as text, with the line it came from.
#[derive(Debug, PartialEq, Eq)]
struct Item {
    line: usize,
    json: String,
}

pub(super) async fn submit(caller: &Caller, file: &Path) -> anyhow::Result<()> {
    let items = read(&slurp(file)?, || Uuid::new_v4().to_string())?;
    if items.is_empty() {
        return Err(Failure::usage(format!("{} has no jobs", file.display())).into());
    }
    let bar = output::bar(items.len() as u64, "submitting");
    let (mut accepted, mut refused) = (0, 0);
    for batch in batches(items) {
        let joined = batch.iter().map(|item| item.json.as_str()).collect::<Vec<_>>().join(",");
        let call = Call::post("/jobs/batch", format!("{{\"items\":[{joined}]}}")).repeatable();
        let answer = ask(caller, &call).await?.value;
        let said = answer["items"].as_array().context("the answer has no items")?;
        for (item, said) in batch.iter().zip(said) {
            if said["job"].is_object() {
                accepted += 1;
                let shown =
                    if caller.format == Format::Json { said["job"].to_string() } else { cell(&said["job"]["id"]) };
                bar.suspend(|| output::line(shown));
            } else {
                refused += 1;
                let why =
                    cell(if said["error"]["detail"].is_string() { &said["error"]["detail"] } else { &said["error"] });
                bar.suspend(|| eprintln!("line {}: {why}", item.line));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if refused > 0 {
        return Err(Failure::new(format!("{refused} of {} jobs were refused", accepted + refused)).into());
    }
    eprintln!("{accepted} jobs accepted");
    Ok(())
}

fn slurp(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Reads one item per line; empty lines are skipped. Adds a key to items without one.
fn read(text: &str, mut key: impl FnMut() -> String) -> Result<Vec<Item>, Failure> {
    #[derive(Deserialize)]
    struct Keyed<'a> {
        #[serde(borrow)]
        idempotency_key: Option<&'a RawValue>,
    }
    let mut items = Vec::new();
    for (line, text) in text.lines().enumerate().map(|(n, text)| (n + 1, text.trim())) {
        if text.is_empty() {
            continue;
        }
        let wrong = |why: String| Failure::usage(format!("line {line}: {why}")).hint("nothing was submitted");
        let keyed: Keyed<'_> = match text.starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?,
            false => return Err(wrong("a job is a JSON object".to_owned())),
        };
        let json = match keyed.idempotency_key {
            Some(_) => text.to_owned(),
            // Insert the key at the front, so that the rest stays as written.
            None => {
                let rest = text[1..].trim_start();
                let comma = if rest.starts_with('}') { "" } else { "," };
                format!("{{\"idempotency_key\":{}{comma}{rest}", Value::String(key()))
            }
        };
        items.push(Item { line, json });
    }
    Ok(items)
}

fn batches(items: Vec<Item>) -> Vec<Vec<Item>> {
    let mut batches: Vec<Vec<Item>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        bytes += item.json.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < MAX_ITEMS && bytes <= MAX_BYTES => batch.push(item),
            _ => {
                bytes = item.json.len();
                batches.push(vec![item]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Vec<Item>, Failure> {
        let mut n = 0;
        read(text, || {
            n += 1;
            format!("k{n}")
        })
    }

    #[test]
    fn every_line_is_a_job_and_gets_a_key_unless_it_has_one() {
        let items = read_all("{\"topic\":\"a\",\"payload\":1.50}\n\n  {\"idempotency_key\":\"mine\"}\r\n{}\n").unwrap();
        let seen: Vec<_> = items.iter().map(|item| (item.line, item.json.as_str())).collect();
        let first = r#"{"idempotency_key":"k1","topic":"a","payload":1.50}"#;
        let last = r#"{"idempotency_key":"k2"}"#;
        assert_eq!(seen, [(1, first), (3, r#"{"idempotency_key":"mine"}"#), (4, last)]);
    }

    #[test]
    fn a_broken_line_is_named_and_nothing_is_sent() {
        for bad in ["{\"a\":}", "[1]", "7", "{} {}"] {
            let error = read_all(&format!("{{}}\n{bad}")).unwrap_err();
            assert!(error.to_string().starts_with("line 2: "), "{error}");
        }
    }

    #[test]
    fn batches_stay_below_both_limits() {
        let item = |size: usize| Item { line: 1, json: "x".repeat(size) };
        let many = batches((0..1201).map(|_| item(10)).collect());
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500, 201]);
        let large = batches((0..5).map(|_| item(3 * 1024 * 1024)).collect());
        assert_eq!(large.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    }
}
