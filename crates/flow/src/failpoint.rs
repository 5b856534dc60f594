//! Places between two writes where a test may kill or delay the process.
//!
//! Compiled only with the feature `failpoints`; otherwise [`hit`] is an empty function.
//! `MUSTER_FAILPOINTS` holds `name=action` separated by `;`. Actions: `kill` (at once, as by
//! `kill -9`), `panic`, `delay:<ms>`. With a file after one more colon (`kill:<file>`,
//! `delay:2000:<file>`) only whoever creates that file does it: once, whatever restarts.

/// Marks a place between two writes.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::hit($name).await
    };
}

/// Whether this place has an action: then steps that are otherwise one are taken apart.
#[cfg(not(feature = "failpoints"))]
pub const fn is_armed(_name: &str) -> bool {
    false
}

/// Does what the test asked for at this place.
#[cfg(not(feature = "failpoints"))]
#[expect(clippy::unused_async, reason = "the same shape as with the feature on")]
pub async fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
pub use armed::{hit, is_armed};

#[cfg(feature = "failpoints")]
mod armed {
    use std::{
        collections::HashMap,
        fs::OpenOptions,
        path::{Path, PathBuf},
        sync::OnceLock,
        time::Duration,
    };

    struct Action {
        what: What,
        once: Option<PathBuf>,
    }

    #[derive(Clone, Copy)]
    enum What {
        Kill,
        Panic,
        Delay(Duration),
    }

    fn actions() -> &'static HashMap<String, Action> {
        static ACTIONS: OnceLock<HashMap<String, Action>> = OnceLock::new();
        ACTIONS.get_or_init(|| {
            #[expect(clippy::disallowed_methods, reason = "only in builds for tests")]
            let text = std::env::var("MUSTER_FAILPOINTS").unwrap_or_default();
            text.split(';').filter_map(parse).collect()
        })
    }

    fn parse(text: &str) -> Option<(String, Action)> {
        let (name, action) = text.trim().split_once('=')?;
        let (kind, rest) = action.split_once(':').map_or((action, None), |(kind, rest)| (kind, Some(rest)));
        let (what, file) = match (kind, rest) {
            ("kill", file) => (What::Kill, file),
            ("panic", file) => (What::Panic, file),
            ("delay", Some(rest)) => {
                let (ms, file) = rest.split_once(':').map_or((rest, None), |(ms, file)| (ms, Some(file)));
                (What::Delay(Duration::from_millis(ms.parse().ok()?)), file)
            }
            _ => return None,
        };
        Some((name.to_owned(), Action { what, once: file.map(PathBuf::from) }))
    }

    /// Whoever creates the file, whichever process that is.
    fn is_first(file: &Path) -> bool {
        OpenOptions::new().write(true).create_new(true).open(file).is_ok()
    }

    /// Whether this place has an action.
    pub fn is_armed(name: &str) -> bool {
        actions().contains_key(name)
    }

    /// Does what the test asked for at this place.
    pub async fn hit(name: &str) {
        let Some(action) = actions().get(name) else { return };
        if action.once.as_deref().is_some_and(|file| !is_first(file)) {
            return;
        }
        match action.what {
            What::Kill => std::process::abort(),
            What::Panic => panic!("asked to, at {name}"),
            What::Delay(span) => tokio::time::sleep(span).await,
        }
    }
}
