//! Fakes the time of day with libfaketime, which leaves a process's monotonic clock alone.

use std::{fs, path::PathBuf};

/// Where Debian keeps the library; one folder per architecture.
fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("a folder").flatten();
    let mut found = folders.map(|entry| entry.path().join("faketime/libfaketime.so.1")).filter(|path| path.is_file());
    found.next().expect("libfaketime is installed (Debian's package `libfaketime`)")
}

/// The environment of a process whose clock shall differ from now by `offset`, such as `-5m`.
pub fn off_by(offset: &str) -> [(&'static str, String); 4] {
    [
        // The C library comes second: then its allocator takes precedence over jemalloc, which reads the clock while
        // libfaketime is still being loaded.
        ("LD_PRELOAD", format!("{}:libc.so.6", library().display())),
        ("FAKETIME", offset.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_RESET", "1".to_owned()),
    ]
}
