//! Finds streams and consumers that differ from what Muster created.
//!
//! It compares the configuration that Muster asks for with the one that the server reports. It only
//! reads. Each difference names the field, the expected value and the actual one. It reads at most
//! [`PAGES`] pages of a stream's consumers. Consumers with other names than Muster's are ignored.
//! `streams.rs` corrects what can be changed in place.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Bus, BusError, ConsumerSpec, Stream, error::NO_STREAM, jetstream::differences, subjects};

/// How many pages of consumers, of 256 each, are read per stream.
const PAGES: usize = 4;

/// One field that differs from what Muster set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// `stream MUSTER_SYS` or `consumer dur_…`.
    pub what: String,
    /// The field's name on the server.
    pub field: String,
    /// The expected value.
    pub want: String,
    /// The actual value.
    pub got: String,
}

#[derive(Deserialize)]
struct Described {
    config: Value,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<Described>>,
}

impl Bus {
    /// Every field of Muster's streams and consumers that was changed. A missing stream has none:
    /// that is reported elsewhere.
    pub async fn drift(&self) -> Result<Vec<Drift>, BusError> {
        let mut found = Vec::new();
        for stream in Stream::ALL {
            let info = match self.api::<Described>(&format!("STREAM.INFO.{}", stream.name()), &Value::Null).await {
                Err(fault) if fault.is_missing(NO_STREAM) => continue,
                info => info?,
            };
            add(&mut found, &format!("stream {}", stream.name()), &stream.config(), &info.config);
            self.consumers_drift(stream, &mut found).await?;
        }
        Ok(found)
    }

    async fn consumers_drift(&self, stream: Stream, found: &mut Vec<Drift>) -> Result<(), BusError> {
        let mut seen = 0;
        for _ in 0..PAGES {
            let verb = format!("CONSUMER.LIST.{}", stream.name());
            let page: Page = self.api(&verb, &json!({ "offset": seen })).await?;
            let consumers = page.consumers.unwrap_or_default();
            seen += consumers.len();
            for consumer in &consumers {
                let name = consumer.config["durable_name"].as_str().unwrap_or_default();
                if let Some(wanted) = wanted(stream, name) {
                    add(found, &format!("consumer {name}"), &wanted, &consumer.config);
                }
            }
            if consumers.is_empty() || seen >= page.total {
                break;
            }
        }
        Ok(())
    }
}

/// The configuration of a Muster consumer without its name and subject; `None` if the consumer is
/// not Muster's.
fn wanted(stream: Stream, name: &str) -> Option<Value> {
    let of = |queue: &str| name.starts_with(&subjects::durable_prefix(queue));
    let like = match stream {
        Stream::Sys if of(subjects::SCHEDULERS) || of(subjects::GATEWAYS) => {
            ConsumerSpec::scheduler(subjects::submit())
        }
        Stream::Jobs if of(subjects::WORKERS) => ConsumerSpec::any_offers(),
        _ => return None,
    };
    let mut config = like.config();
    let fields = config.as_object_mut()?;
    fields.remove("durable_name");
    fields.remove("filter_subject");
    Some(config)
}

fn add(found: &mut Vec<Drift>, what: &str, wanted: &Value, got: &Value) {
    let drift = |(field, want, got): (&str, &Value, &Value)| Drift {
        what: what.to_owned(),
        field: field.to_owned(),
        want: want.to_string(),
        got: got.to_string(),
    };
    found.extend(differences(wanted, got).map(drift));
}
