//! `muster-codegen [--check]`: writes the generated files, or lists those that are stale.

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let check = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => anyhow::bail!("usage: muster-codegen [--check]"),
    };
    let stale = muster_codegen::run(&muster_codegen::workspace_root()?, check)?;
    for path in &stale {
        eprintln!("{} {}", if check { "stale:" } else { "wrote:" }, path.display());
    }
    Ok(if check && !stale.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
