//! The docs cannot fall behind unnoticed: links lead somewhere, the pages of settings and loops are
//! what the services say, every metric and every error code is explained.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use muster_testkit::bin;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn pages(folder: &Path, found: &mut Vec<std::path::PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// Targets of `[text](target)` that name a file of this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).filter(|target| {
        !target.contains("://") && !target.starts_with('#') && !target.contains(' ') && !target.is_empty()
    })
}

#[test]
fn every_link_between_pages_leads_somewhere() -> Result<()> {
    let mut all = vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CHANGELOG.md")];
    pages(&root().join("docs"), &mut all)?;
    let mut checked = 0;
    for page in &all {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        for target in links(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let place = page.parent().context("no folder")?.join(file);
            ensure!(place.exists(), "{}: nothing at {target}", page.display());
            checked += 1;
        }
    }
    ensure!(checked > 30, "only {checked} links were found");
    Ok(())
}

#[test]
fn the_worker_shown_in_the_readme_is_the_one_that_compiles() -> Result<()> {
    let example = fs::read_to_string(root().join("sdk/rust/examples/echo_worker.rs"))?;
    let code = example.split_once("\n\n").context("no module doc")?.1.trim();
    let readme = fs::read_to_string(root().join("README.md"))?;
    ensure!(readme.contains(code), "README.md shows another worker than sdk/rust/examples/echo_worker.rs");
    Ok(())
}

#[test]
fn the_pages_of_settings_and_loops_are_what_the_services_say() -> Result<()> {
    for (file, flag) in [("settings.md", "--print-reference"), ("loops.md", "--print-loops")] {
        let page = fs::read_to_string(root().join("docs/reference").join(file))?;
        for service in ["muster-gateway", "muster-scheduler"] {
            let said = Command::new(bin(service)).arg(flag).output()?;
            ensure!(said.status.success(), "{service} does not know {flag}");
            let table = String::from_utf8(said.stdout)?;
            ensure!(page.contains(table.trim()), "docs/reference/{file} is stale for {service}: run `make docs`");
        }
    }
    Ok(())
}

#[test]
fn every_metric_is_explained() -> Result<()> {
    let source = fs::read_to_string(root().join("crates/telemetry/src/metrics/catalogue.rs"))?;
    let page = fs::read_to_string(root().join("docs/operate.md"))?;
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let names: BTreeSet<&str> = code.split('"').filter(|word| word.starts_with("muster_")).collect();
    ensure!(names.len() > 10, "the catalogue could not be read");
    for name in names {
        ensure!(page.contains(&format!("`{name}")), "docs/operate.md does not explain {name}");
    }
    Ok(())
}

#[test]
fn the_index_of_errors_lists_every_page() -> Result<()> {
    let index = fs::read_to_string(root().join("docs/errors/README.md"))?;
    let mut all = Vec::new();
    pages(&root().join("docs/errors"), &mut all)?;
    for page in all {
        let name = page.file_name().context("no name")?.to_string_lossy().into_owned();
        ensure!(name == "README.md" || index.contains(&format!("({name})")), "docs/errors/README.md misses {name}");
    }
    Ok(())
}
