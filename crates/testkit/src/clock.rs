//! Lies about the time of day: libfaketime, which leaves a process's monotonic clock alone.

use std::{fs, path::PathBuf};

/// Where Debian keeps the library; one folder per architecture.
fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("a folder").flatten();
    let mut found = folders.map(|entry| entry.path().join("faketime/libfaketime.so.1")).filter(|path| path.is_file());
    found.next().expect("libfaketime is installed (Debian's package `libfaketime`)")
}

/// What to set for a process that shall believe it is this far from now, such as `-5m`.
pub fn off_by(offset: &str) -> [(&'static str, String); 4] {
    [
        // The C library second: its allocator then comes before jemalloc, which reads the clock while the
        // library that lies about it is still being loaded.
        ("LD_PRELOAD", format!("{}:libc.so.6", library().display())),
        ("FAKETIME", offset.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_RESET", "1".to_owned()),
    ]
}
