//! `muster workflow`: definitions of workflows. `validate` and `graph` need no server: they read files as a gateway
//! reads bodies.

use std::{io::Read as _, path::PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use muster_engine::definition::{Definition, DefinitionFault, GraphFormat, graph, read_named};
use serde_json::{Value, json};

use crate::{
    outcome::Failure,
    output::{self, Format},
};

#[derive(Subcommand, Debug)]
pub(crate) enum Workflow {
    Validate(Validate),
    Graph(Graph),
}

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

/// Draw a definition without a server
#[derive(Args, Debug)]
pub(crate) struct Graph {
    /// A file with a definition in YAML or JSON; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// What to draw it as
    #[arg(long, value_enum, default_value_t)]
    format: Drawing,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Drawing {
    /// A Mermaid flowchart
    #[default]
    Mermaid,
    /// An SVG image
    Svg,
}

impl Workflow {
    pub(crate) fn run(self, format: Format) -> anyhow::Result<()> {
        match self {
            Workflow::Validate(validate) => validate.run(format),
            Workflow::Graph(graph) => graph.run(),
        }
    }
}

impl Validate {
    fn run(self, format: Format) -> anyhow::Result<()> {
        let mut read = Vec::new();
        for file in &self.files {
            read.push((file.display().to_string(), definition(file, self.name.as_deref())?));
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

impl Graph {
    fn run(self) -> anyhow::Result<()> {
        let file = self.file.display().to_string();
        let read = definition(&self.file, None)?;
        let definition = read.map_err(|faults| {
            let lines: Vec<String> = faults.iter().map(|fault| format!("\n{file}:{fault}")).collect();
            Failure::new(format!("the definition has faults{}", lines.concat()))
        })?;
        let format = match self.format {
            Drawing::Mermaid => GraphFormat::Mermaid,
            Drawing::Svg => GraphFormat::Svg,
        };
        output::line(graph(&definition, None, format).trim_end());
        Ok(())
    }
}

type Read = Result<Definition, Vec<DefinitionFault>>;

/// Reads a file's definition. The ending of its name says whether it is YAML or JSON.
fn definition(file: &PathBuf, name: Option<&str>) -> anyhow::Result<Read> {
    let mut text = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let format = match file.extension().and_then(|ending| ending.to_str()) {
        Some("json") => muster_engine::definition::Format::Json,
        Some("yaml" | "yml") => muster_engine::definition::Format::Yaml,
        _ => muster_engine::definition::Format::Guess,
    };
    Ok(read_named(&text, format, name))
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
