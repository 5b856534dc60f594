//! Temporary folders whose name carries the process id, so that the next test process removes what a killed one left
//! behind. Shared servers are never dropped, so they never remove their folders themselves.

use std::{path::Path, sync::Once};

use tempfile::TempDir;

const PREFIX: &str = "muster-test-";

/// A fresh folder; removed on drop, or by a later test process.
pub(crate) fn fresh() -> TempDir {
    static SWEEP: Once = Once::new();
    SWEEP.call_once(sweep);
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir()
        .expect("a temporary folder can be made")
}

fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        if let Some(pid) = owner
            && !Path::new("/proc").join(pid).exists()
        {
            // Another test process may be sweeping as well: the second one finds nothing.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
