//! What retention must know of a stored run: when it ended, and which runs need it.
//!
//! A sub-run stays as long as the run above it. A run whose results a rerun took over stays as long as the rerun: it
//! notes the reruns in a field of its own, before they are stored.

use bytes::Bytes;
use muster_domain::RunId;
use muster_engine::run::Glance;
use muster_store::{RunAge, SavedRun, StoredRun};

use crate::{Runs, RunsError};

/// The field with the reruns that took over results.
const NEEDED: &str = "needed";
/// The most reruns that one run notes; the youngest stay.
const MOST: usize = 1_000;
/// How often the note is tried again after another process saved the run.
const TRIES: u32 = 10;

/// The fields that [`run_age`] reads.
pub const AGE_FIELDS: [&[u8]; 3] = [b"about", b"head", NEEDED.as_bytes()];

fn noted(stored: &StoredRun) -> Vec<RunId> {
    let bytes = stored.fields.get(NEEDED.as_bytes()).map(AsRef::as_ref).unwrap_or_default();
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.split(' ').filter_map(|id| id.parse().ok()).collect()
}

/// The age of a stored run; none if it cannot be read.
pub fn run_age(stored: &StoredRun) -> Option<RunAge> {
    let field = |name: &str| stored.fields.get(name.as_bytes()).map(AsRef::as_ref);
    let Glance { about, ended, .. } = Glance::read(field("about"), field("head")).ok()?;
    let mut needed_by = noted(stored);
    needed_by.extend(about.parent.map(|parent| parent.run));
    Some(RunAge { ended, needed_by })
}

impl Runs {
    /// Notes in a run that another one takes over its results. A run that is gone notes nothing. Repeating is harmless.
    pub(crate) async fn note_need(&self, old: RunId, new: RunId) -> Result<(), RunsError> {
        for _ in 0..TRIES {
            let Some(stored) = self.flow.store.read_run_fields(old, &[NEEDED.as_bytes()]).await? else { return Ok(()) };
            let mut needed = noted(&stored);
            if needed.contains(&new) {
                return Ok(());
            }
            needed.push(new);
            let first = needed.len().saturating_sub(MOST);
            let text: Vec<String> = needed.iter().skip(first).map(ToString::to_string).collect();
            let set = [(Bytes::from_static(NEEDED.as_bytes()), Bytes::from(text.join(" ")))];
            let saved = self.flow.store.save_run(old, stored.version, fastrand::u64(..), &set, &[]).await?;
            if matches!(saved, SavedRun::Saved { .. }) {
                return Ok(());
            }
        }
        Err(RunsError::Contended(old))
    }
}
