//! State table and script headers → Lua, Rust and docs.
//!
//! Knows: `domain::job::TABLE`, the header format of `lua/`, and the files made from them.
//! Promises: the same input gives the same bytes; check mode writes nothing.

mod constants;
mod docs;
mod lua_table;
mod rust_calls;
mod script;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The folder with the workspace's `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes every generated file that differs, or only names them; returns those that did.
pub fn run(root: &Path, check: bool) -> Result<Vec<PathBuf>> {
    let mut stale = Vec::new();
    let mut put = |path: &str, text: String| -> Result<()> {
        let path = root.join(path);
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            if !check {
                fs::create_dir_all(path.parent().context("no parent")?)?;
                fs::write(&path, &text).with_context(|| path.display().to_string())?;
            }
            stale.push(path);
        }
        Ok(())
    };
    let table = lua_table::render();
    put("lua/job/table.lua", table.clone())?;
    let scripts = script::read_all(&root.join("lua"), &table)?;
    put("crates/store/src/scripts.rs", rust_calls::render(&scripts))?;
    put("docs/reference/job-states.md", docs::states())?;
    put("docs/reference/scripts.md", docs::scripts(&scripts))?;
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_is_committed_and_current() {
        let stale = run(&workspace_root(), true).unwrap();
        assert!(stale.is_empty(), "run `cargo run -p muster-codegen`: {stale:?}");
    }
}
