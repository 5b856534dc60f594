//! Stored definitions: apply, list, show, draw, delete. Definitions are sent as they were written; each fault is
//! printed with its file, line and column.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{Drawing, checked, files, yaml};
use crate::{
    api::{Answer, Call, CallError},
    commands::Caller,
    outcome::Failure,
    output::{self, Asked, Format, cell},
};

/// Store definitions; content that equals the latest version makes no new one
#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Files with a definition in YAML or JSON; - is standard input
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The name of the workflow [default: that of the file, without its ending]
    #[arg(long)]
    name: Option<String>,

    /// Only if this is still the latest version; 0 if there must be none
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

/// Show a definition: as YAML that can be applied again, or with `-o json` as the gateway sends it
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub(crate) struct Get {
    /// The workflow
    name: String,

    /// The version [default: the latest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
}

impl Apply {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        if self.files.len() > 1 && (self.name.is_some() || self.if_version.is_some()) {
            return Err(Failure::usage("--name and --if-version are about one file").into());
        }
        let mut named = Vec::new();
        for file in &self.files {
            named.push((file, self.name_of(file)?));
        }
        for (file, name) in named {
            let answer = self.apply(caller, file, &name).await?;
            match caller.format {
                Format::Json => output::line(&answer.text),
                Format::Table => {
                    output::line(format_args!("workflow {name} is at version {}", cell(&answer.value["version"])))
                }
            }
        }
        Ok(())
    }

    fn name_of(&self, file: &Path) -> Result<String, Failure> {
        let stem = || file.file_stem().filter(|stem| *stem != "-").map(|stem| stem.to_string_lossy().into_owned());
        let name = self.name.clone().or_else(stem);
        let name = name.ok_or_else(|| Failure::usage("standard input has no name: say which one with --name"))?;
        checked(&name).map(str::to_owned)
    }

    async fn apply(&self, caller: &Caller, file: &Path, name: &str) -> anyhow::Result<Answer> {
        let source = files::source(file)?;
        let text = String::from_utf8(source.text.clone());
        let text = text.map_err(|_| Failure::new(format!("{} is not UTF-8", file.display())))?;
        // Without a condition a repeat stores nothing new.
        let call = Call::put(format!("/workflows/{name}"), text).media(source.media());
        let call = match self.if_version {
            Some(version) => call.if_match(version),
            None => call.repeatable(),
        };
        match caller.api.call(&call).await {
            Err(CallError::Refused(problem)) if problem.status == 422 => {
                // The gateway does not know the name of the file.
                match source.definition(Some(name)) {
                    Err(faults) => Err(files::faulty(file, &faults).into()),
                    Ok(_) => Err(Failure::from(CallError::Refused(problem)).into()),
                }
            }
            answer => Ok(answer.map_err(Failure::from)?),
        }
    }
}

impl Get {
    pub(super) async fn run(self, caller: &Caller, asked: Asked) -> anyhow::Result<()> {
        let name = checked(&self.name)?;
        let path = match self.version {
            Some(version) => format!("/workflows/{name}/versions/{version}"),
            None => format!("/workflows/{name}"),
        };
        let answer = ask(caller, &Call::get(path)).await?;
        if asked == Asked::Json {
            output::line(&answer.text);
            return Ok(());
        }
        let stored = &answer.value;
        let (version, created) = (cell(&stored["version"]), cell(&stored["created_at"]));
        output::line(format_args!("# {name}, version {version}, stored {created}"));
        output::line(yaml::text(&stored["definition"]).trim_end());
        Ok(())
    }
}

/// Lists workflows by name.
pub(super) async fn list(caller: &Caller) -> anyhow::Result<()> {
    let workflows = all(caller, "/workflows").await?;
    match caller.format {
        Format::Json => output::json(&json!({"items": workflows})),
        Format::Table => {
            let row = |workflow: &Value| {
                ["name", "version", "steps", "updated_at", "description"].map(|name| cell(&workflow[name])).to_vec()
            };
            output::rows(&["NAME", "VERSION", "STEPS", "UPDATED", "DESCRIPTION"], workflows.iter().map(row));
        }
    }
    Ok(())
}

/// Lists the versions of a workflow.
pub(super) async fn versions(caller: &Caller, name: &str) -> anyhow::Result<()> {
    let versions = all(caller, &format!("/workflows/{}/versions", checked(name)?)).await?;
    match caller.format {
        Format::Json => output::json(&json!({"items": versions})),
        Format::Table => {
            let row = |version: &Value| ["version", "created_at"].map(|name| cell(&version[name])).to_vec();
            output::rows(&["VERSION", "CREATED"], versions.iter().map(row));
        }
    }
    Ok(())
}

/// Draws a stored definition.
pub(super) async fn draw(caller: &Caller, name: &str, version: Option<u32>, drawing: Drawing) -> anyhow::Result<()> {
    let call = Call::get(format!("/workflows/{}/graph", checked(name)?)).query("format", drawing.word());
    let call = version.into_iter().fold(call, |call, version| call.query("version", version.to_string()));
    output::line(ask(caller, &call).await?.text.trim_end());
    Ok(())
}

/// Deletes a workflow.
pub(super) async fn delete(caller: &Caller, name: &str) -> anyhow::Result<()> {
    ask(caller, &Call::delete(format!("/workflows/{}", checked(name)?))).await?;
    output::line(format_args!("workflow {name} is gone; its runs continue"));
    Ok(())
}

/// All items of a list, page after page.
async fn all(caller: &Caller, path: &str) -> Result<Vec<Value>, Failure> {
    let (mut items, mut cursor): (Vec<Value>, Option<String>) = (Vec::new(), None);
    loop {
        let call = cursor.iter().fold(Call::get(path), |call, cursor| call.query("cursor", cursor));
        let mut page = ask(caller, &call).await?.value;
        if let Some(found) = page["items"].as_array_mut() {
            items.append(found);
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

async fn ask(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    caller.api.call(call).await.map_err(Failure::from)
}
