//! Definitions in files, which need no server: they are read as a gateway reads bodies, checked, and drawn.

use std::{io::Read as _, path::Path, path::PathBuf};

use anyhow::Context;
use clap::Args;
use muster_engine::definition::{self, Definition, DefinitionFault, GraphFormat, graph, read_named};
use serde_json::{Value, json};

use crate::{
    outcome::Failure,
    output::{self, Format},
};

/// Check definitions without a server; exit with 1 if any has a fault
#[derive(Args, Debug)]
pub(crate) struct Validate {
    /// Files with a definition in YAML or JSON; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The name of the workflow, which must not start itself
    #[arg(long)]
    name: Option<String>,
}

impl Validate {
    pub(super) fn run(&self, format: Format) -> anyhow::Result<()> {
        let mut read = Vec::new();
        for file in &self.files {
            read.push((file.display().to_string(), source(file)?.definition(self.name.as_deref())));
        }
        let bad = read.iter().filter(|(_, result)| result.is_err()).count();
        match format {
            Format::Json => output::json(&report(&read)),
            Format::Table => {
                for (file, result) in &read {
                    match result {
                        Ok(definition) => output::line(format_args!("{file}: valid, {}", size(definition))),
                        Err(faults) => faults.iter().for_each(|fault| output::line(format_args!("{file}:{fault}"))),
                    }
                }
            }
        }
        match (bad, read.len()) {
            (0, _) => Ok(()),
            (1, 1) => Err(Failure::new("the definition has faults").into()),
            (bad, all) => Err(Failure::new(format!("{bad} of {all} definitions have faults")).into()),
        }
    }
}

/// Draws the definition in a file.
pub(super) fn drawn(file: &Path, format: GraphFormat) -> anyhow::Result<String> {
    let definition = source(file)?.definition(None).map_err(|faults| faulty(file, &faults))?;
    Ok(graph(&definition, None, format))
}

/// The refusal of a definition, with a line for each fault.
pub(super) fn faulty(file: &Path, faults: &[DefinitionFault]) -> Failure {
    let lines: Vec<String> = faults.iter().map(|fault| format!("\n{}:{fault}", file.display())).collect();
    Failure::new(format!("the definition has faults{}", lines.concat()))
}

/// A definition as it was written.
pub(super) struct Source {
    pub(super) text: Vec<u8>,
    format: definition::Format,
}

type Read = Result<Definition, Vec<DefinitionFault>>;

/// Reads a file; `-` is standard input. The ending of its name says whether it is YAML or JSON.
pub(super) fn source(file: &Path) -> anyhow::Result<Source> {
    let mut text = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let format = match file.extension().and_then(|ending| ending.to_str()) {
        Some("json") => definition::Format::Json,
        Some("yaml" | "yml") => definition::Format::Yaml,
        _ => definition::Format::Guess,
    };
    Ok(Source { text, format })
}

impl Source {
    /// The definition, or its faults.
    pub(super) fn definition(&self, name: Option<&str>) -> Read {
        read_named(&self.text, self.format, name)
    }

    /// The media type. YAML is a superset of JSON.
    pub(super) fn media(&self) -> &'static str {
        match self.format {
            definition::Format::Json => "application/json",
            _ => "application/yaml",
        }
    }
}

fn size(definition: &Definition) -> String {
    match definition.step_count() {
        1 => "1 step".into(),
        steps => format!("{steps} steps"),
    }
}

fn report(read: &[(String, Read)]) -> Value {
    let fault = |fault: &DefinitionFault| {
        json!({
            "line": fault.line,
            "column": fault.column,
            "pointer": fault.pointer,
            "code": fault.code,
            "message": fault.message,
        })
    };
    let files = read.iter().map(|(file, result)| match result {
        Ok(definition) => json!({"file": file, "valid": true, "steps": definition.step_count(), "faults": []}),
        Err(faults) => json!({"file": file, "valid": false, "faults": faults.iter().map(fault).collect::<Vec<_>>()}),
    });
    json!({"valid": read.iter().all(|(_, result)| result.is_ok()), "files": files.collect::<Vec<_>>()})
}
