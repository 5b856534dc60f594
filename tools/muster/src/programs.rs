//! Finds the programs of a stack.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::outcome::Failure;

/// Debian installs servers in folders that are not in a user's PATH.
const SYSTEM: [&str; 4] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin"];

/// Finds a server program of the system; the error says how to install it.
pub(crate) fn server(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    find(name).ok_or_else(|| {
        Failure::new(format!("{name} is not installed"))
            .hint(format!("`make run` installs what is missing; or: sudo apt-get install {package}"))
            .into()
    })
}

/// Finds one of Muster's services, which are built beside this program.
pub(crate) fn own(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let path = me.with_file_name(name);
    if is_program(&path) {
        return Ok(path);
    }
    Err(Failure::new(format!("{name} is not beside {}", me.display()))
        .hint("build all of it first: `make build`, or `cargo build --release --workspace`")
        .into())
}

/// Finds a program in PATH and in the system's folders for servers.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(SYSTEM.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_missing_ones_come_with_a_hint() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
        let error = server("no-such-program-anywhere", "nothing").unwrap_err();
        assert_eq!(error.to_string(), "no-such-program-anywhere is not installed");
    }
}
