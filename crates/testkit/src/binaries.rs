//! Finds the workspace's own programs for end-to-end tests.

use std::path::PathBuf;

/// The path of a workspace binary, built in the same profile as the running test.
///
/// # Panics
/// When it has not been built, with a hint.
pub fn bin(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("tests run from target/<profile>/deps");
    let path = target.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --workspace` first, for an example with `--examples`",
        path.display()
    );
    path
}
