//! Places between two writes where a test may kill or delay the process.
//!
//! Compiled only with the feature `failpoints`; otherwise [`hit`] is an empty function.
//! `MUSTER_FAILPOINTS` holds `name=action` separated by `;`. Actions: `kill` (at once, as by `kill -9`), `panic`,
//! `delay:<ms>`. With a file after one more colon (`kill:<file>`, `delay:2000:<file>`), only the process that creates
//! that file does it: once, also across restarts. An entry `@<folder>` names a folder of orders, which a test may add
//! at any time: a file with the name of a failpoint holds an action, and the process that removes the file does it.

/// Marks a place between two writes.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::hit($name).await
    };
}

/// Does what the test asked for at this place.
#[cfg(not(feature = "failpoints"))]
#[expect(clippy::unused_async, reason = "the same shape as with the feature on")]
pub async fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
pub use armed::hit;

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

    /// The configuration of this process.
    struct Configuration {
        actions: HashMap<String, Action>,
        orders: Option<PathBuf>,
    }

    fn configuration() -> &'static Configuration {
        static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();
        CONFIGURATION.get_or_init(|| {
            #[expect(clippy::disallowed_methods, reason = "only in builds for tests")]
            let text = std::env::var("MUSTER_FAILPOINTS").unwrap_or_default();
            let orders = text.split(';').find_map(|part| part.trim().strip_prefix('@')).map(PathBuf::from);
            Configuration { actions: text.split(';').filter_map(parse).collect(), orders }
        })
    }

    fn parse(text: &str) -> Option<(String, Action)> {
        let (name, action) = text.trim().split_once('=')?;
        Some((name.to_owned(), read(action)?))
    }

    fn read(action: &str) -> Option<Action> {
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
        Some(Action { what, once: file.map(PathBuf::from) })
    }

    /// Whether this process is the one that creates the file.
    fn is_first(file: &Path) -> bool {
        OpenOptions::new().write(true).create_new(true).open(file).is_ok()
    }

    /// The order for this failpoint, if there is one and no other process was faster to take it.
    fn ordered(folder: &Path, name: &str) -> Option<What> {
        let file = folder.join(name);
        let action = read(std::fs::read_to_string(&file).ok()?.trim())?;
        std::fs::remove_file(&file).ok()?;
        Some(action.what)
    }

    /// What the test asked for at this place.
    fn asked(name: &str) -> Option<What> {
        let Configuration { actions, orders } = configuration();
        let first = |action: &&Action| action.once.as_deref().is_none_or(is_first);
        let always = actions.get(name).filter(first).map(|action| action.what);
        always.or_else(|| ordered(orders.as_deref()?, name))
    }

    /// Does what the test asked for at this place.
    pub async fn hit(name: &str) {
        let Some(what) = asked(name) else { return };
        match what {
            What::Kill => std::process::abort(),
            What::Panic => panic!("asked to, at {name}"),
            What::Delay(span) => tokio::time::sleep(span).await,
        }
    }
}
