//! State table, script headers, metric names, the workflow format and the operator's keys → Lua, Rust and docs.
//!
//! Knows: `domain::job::TABLE`, the header format of `lua/`, the catalogue of metrics, the format in `engine`, one block of the store's
//! `keys.rs`, and the files made from them.
//! Promises: the same input gives the same bytes; check mode writes nothing.

mod constants;
mod docs;
mod lua_table;
mod metrics;
mod operator_keys;
mod rust_calls;
mod script;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The workspace that contains the current folder, found at run time: several clones may share a target folder, and
/// the program in it was built from one of them.
pub fn workspace_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("where are we?")?;
    let holds = |folder: &&Path| {
        fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|text| text.lines().any(|line| line == "[workspace]"))
    };
    let root = here.ancestors().find(holds);
    root.map(Path::to_owned).with_context(|| format!("no workspace holds {}", here.display()))
}

/// Writes every generated file that differs, or with `check` writes none; returns those that differ.
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
    put("docs/reference/metrics.md", metrics::page())?;
    put("docs/reference/workflow-format.md", muster_engine::definition::page())?;
    let keys = fs::read_to_string(root.join("crates/store/src/keys.rs"))?;
    put("tools/muster/src/redis/keys.rs", operator_keys::render(&keys)?)?;
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_is_committed_and_current() {
        let stale = run(&workspace_root().unwrap(), true).unwrap();
        assert!(stale.is_empty(), "run `cargo run -p muster-codegen`: {stale:?}");
    }

    #[test]
    fn the_workspace_is_the_one_that_holds_the_current_folder() {
        let root = workspace_root().unwrap();
        assert!(std::env::current_dir().unwrap().starts_with(&root));
        assert!(root.join("lua").is_dir(), "{}", root.display());
    }
}
