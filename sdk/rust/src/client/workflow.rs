//! Workflows: their definitions are stored under a name, in versions that the gateway numbers. Definitions are sent as
//! they were written, so that a fault has its line and its column.

use std::fmt;

use bytes::Bytes;
use muster_domain::Time;
use reqwest::Method;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Client, ClientError,
    fields::{moment, read},
    pages::Pages,
    transport::{Call, Repeat},
};

/// The definition of a workflow, as YAML or JSON.
///
/// ```
/// use muster_sdk::WorkflowSource;
/// let yaml = WorkflowSource::yaml("steps: [{id: mail, job: {topic: mail.send}}]");
/// let json = WorkflowSource::json(&serde_json::json!({"steps": [{"id": "mail", "job": {"topic": "mail.send"}}]}))?;
/// # drop((yaml, json));
/// # Ok::<(), muster_sdk::ClientError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct WorkflowSource {
    text: Bytes,
    media: &'static str,
}

impl WorkflowSource {
    /// A definition in YAML.
    pub fn yaml(text: impl Into<String>) -> WorkflowSource {
        WorkflowSource { text: text.into().into(), media: "application/yaml" }
    }

    /// A definition as a value that can be written as JSON.
    pub fn json(definition: &(impl Serialize + ?Sized)) -> Result<WorkflowSource, ClientError> {
        let text = serde_json::to_vec(definition).map_err(|error| ClientError::Invalid(error.to_string()))?;
        Ok(WorkflowSource { text: text.into(), media: "application/json" })
    }
}

impl fmt::Debug for WorkflowSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphFormat {
    /// An SVG image.
    Svg,
    /// A Mermaid flowchart.
    Mermaid,
}

impl GraphFormat {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            GraphFormat::Svg => "svg",
            GraphFormat::Mermaid => "mermaid",
        }
    }
}

/// A version of a workflow.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Workflow {
    /// The name of the workflow.
    pub name: String,
    /// The number of the version; 1 is the first.
    pub version: u32,
    /// When the version was stored.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// The definition in its canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<RawValue>>,
}

impl Workflow {
    /// The definition as a value.
    pub fn definition_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.definition.as_deref(), "definition")
    }
}

/// A workflow in a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct WorkflowSummary {
    /// The name of the workflow.
    pub name: String,
    /// The number of its latest version.
    pub version: u32,
    /// What the definition says about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When the latest version was stored.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// How many steps the latest version has.
    #[serde(default)]
    pub steps: u32,
}

/// A version in a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct WorkflowVersion {
    /// The number of the version.
    pub version: u32,
    /// When the version was stored.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

impl Client {
    /// Stores a definition under this name. One that equals the latest version makes no new version.
    pub async fn put_workflow(&self, name: &str, source: &WorkflowSource) -> Result<Workflow, ClientError> {
        self.transport.call(&put(name, source)).await?.json()
    }

    /// Stores a definition if this is still the latest version; otherwise the gateway answers 412. Version 0 means that
    /// the workflow must not exist yet. Not repeated if the answer is lost.
    pub async fn replace_workflow(
        &self,
        name: &str,
        source: &WorkflowSource,
        version: u32,
    ) -> Result<Workflow, ClientError> {
        self.transport.call(&put(name, source).if_match(version).repeat(Repeat::Unsent)).await?.json()
    }

    /// The latest version of a workflow.
    pub async fn get_workflow(&self, name: &str) -> Result<Workflow, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["workflows", name])).await?.json()
    }

    /// A certain version of a workflow.
    pub async fn get_workflow_version(&self, name: &str, version: u32) -> Result<Workflow, ClientError> {
        let path = ["workflows", name, "versions", &version.to_string()];
        self.transport.call(&Call::new(Method::GET, path)).await?.json()
    }

    /// The versions of a workflow that are kept.
    pub async fn workflow_versions(&self, name: &str) -> Result<Vec<WorkflowVersion>, ClientError> {
        Pages::new(self.clone(), Call::new(Method::GET, ["workflows", name, "versions"])).all().await
    }

    /// All workflows, by name.
    pub async fn list_workflows(&self) -> Result<Vec<WorkflowSummary>, ClientError> {
        Pages::new(self.clone(), Call::new(Method::GET, ["workflows"])).all().await
    }

    /// Deletes a workflow. Its runs continue. Deleting a workflow that is gone is fine.
    pub async fn delete_workflow(&self, name: &str) -> Result<(), ClientError> {
        match self.transport.call(&Call::new(Method::DELETE, ["workflows", name])).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// A drawing of a workflow: of its latest version, or of a certain one.
    pub async fn workflow_graph(
        &self,
        name: &str,
        version: Option<u32>,
        format: GraphFormat,
    ) -> Result<String, ClientError> {
        let call = Call::new(Method::GET, ["workflows", name, "graph"]).query("format", format.as_str());
        let call = version.into_iter().fold(call, |call, version| call.query("version", version.to_string()));
        self.transport.call(&call).await?.text()
    }
}

fn put(name: &str, source: &WorkflowSource) -> Call {
    Call::new(Method::PUT, ["workflows", name]).text(source.text.clone(), source.media)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_is_read_whatever_else_it_says_and_its_definition_stays_as_it_was() {
        let text = r#"{"name":"order","version":3,"created_at":"2026-01-02T03:04:05.678Z","new":[1],
            "definition":{"steps": [{"id":"a","set":1.50}]}}"#;
        let workflow: Workflow = serde_json::from_str(text).unwrap();
        assert_eq!((workflow.name.as_str(), workflow.version), ("order", 3));
        assert_eq!(workflow.created_at.unwrap().rfc3339(), "2026-01-02T03:04:05.678Z");
        assert_eq!(workflow.definition.as_ref().unwrap().get(), r#"{"steps": [{"id":"a","set":1.50}]}"#);
        assert_eq!(workflow.definition_as::<serde_json::Value>().unwrap()["steps"][0]["id"], "a");
        let listed: WorkflowSummary = serde_json::from_str(r#"{"name":"order","version":3,"steps":7}"#).unwrap();
        assert_eq!((listed.steps, listed.description, listed.updated_at), (7, None, None));
    }
}
