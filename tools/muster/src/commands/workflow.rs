//! `muster workflow`: definitions of workflows. `validate` and `graph` of a file need no server: they read files as a
//! gateway reads bodies. The other commands are about stored definitions.

mod files;
mod stored;
mod yaml;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use muster_domain::WorkflowName;
use muster_engine::definition::GraphFormat;

use super::Caller;
use crate::{
    outcome::Failure,
    output::{self, Asked, Format},
};

#[derive(Subcommand, Debug)]
pub(crate) enum Workflow {
    Validate(files::Validate),
    Graph(Graph),
    Apply(stored::Apply),
    /// List workflows
    List,
    Get(stored::Get),
    /// List the versions of a workflow
    Versions {
        /// The workflow
        name: String,
    },
    /// Delete a workflow; its runs continue
    Delete {
        /// The workflow
        name: String,
    },
}

/// Draw a definition: a file, without a server, or a stored workflow
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct Graph {
    /// A workflow, or a file (- or a name that ends with .yaml, .yml or .json, or that contains a slash)
    #[arg(value_name = "WORKFLOW|FILE", required_unless_present_any = ["file", "name"])]
    what: Option<String>,

    /// A workflow, whatever its name
    #[arg(long, conflicts_with_all = ["what", "file"])]
    name: Option<String>,

    /// A file with a definition in YAML or JSON, whatever its name; - is standard input
    #[arg(long, conflicts_with_all = ["what", "version"])]
    file: Option<PathBuf>,

    /// The version of a workflow [default: the latest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,

    /// What to draw it as
    #[arg(long, value_enum, default_value_t)]
    format: Drawing,
}

/// What to draw a graph as.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Drawing {
    /// A Mermaid flowchart
    #[default]
    Mermaid,
    /// An SVG image
    Svg,
}

impl Drawing {
    /// The word of the API.
    pub(super) fn word(self) -> &'static str {
        match self {
            Drawing::Mermaid => "mermaid",
            Drawing::Svg => "svg",
        }
    }

    fn format(self) -> GraphFormat {
        match self {
            Drawing::Mermaid => GraphFormat::Mermaid,
            Drawing::Svg => GraphFormat::Svg,
        }
    }
}

impl Workflow {
    /// Runs the command. `caller` is made only if a gateway is needed.
    pub(crate) async fn run(
        self,
        asked: Asked,
        format: Format,
        caller: impl FnOnce() -> anyhow::Result<Caller>,
    ) -> anyhow::Result<()> {
        match self {
            Workflow::Validate(validate) => validate.run(format),
            Workflow::Graph(graph) => match graph.file() {
                Some(file) => {
                    output::line(files::drawn(&file, graph.format.format())?.trim_end());
                    Ok(())
                }
                None => {
                    let name = graph.name.or(graph.what).unwrap_or_default();
                    stored::draw(&caller()?, &name, graph.version, graph.format).await
                }
            },
            Workflow::Apply(apply) => apply.run(&caller()?).await,
            Workflow::List => stored::list(&caller()?).await,
            Workflow::Get(get) => get.run(&caller()?, asked).await,
            Workflow::Versions { name } => stored::versions(&caller()?, &name).await,
            Workflow::Delete { name } => stored::delete(&caller()?, &name).await,
        }
    }

    /// Whether the command can write YAML.
    pub(crate) fn writes_yaml(&self) -> bool {
        matches!(self, Workflow::Get(_))
    }
}

impl Graph {
    /// The file, if it is about one.
    fn file(&self) -> Option<PathBuf> {
        let is_file = |text: &&String| {
            *text == "-" || text.contains('/') || [".yaml", ".yml", ".json"].iter().any(|ending| text.ends_with(ending))
        };
        self.file.clone().or_else(|| self.what.as_ref().filter(is_file).map(PathBuf::from))
    }
}

/// Checks the name of a workflow, because it becomes part of a path.
fn checked(name: &str) -> Result<&str, Failure> {
    match WorkflowName::parse(name) {
        Ok(_) => Ok(name),
        Err(fault) => Err(Failure::usage(format!("{name:?} is not the name of a workflow")).hint(fault.to_string())),
    }
}
