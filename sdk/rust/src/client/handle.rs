//! Typed handles of workflows and runs: the types of input and output are named once.

use std::{fmt, marker::PhantomData, time::Duration};

use muster_domain::RunId;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Client,
    error::ClientError,
    run::Run,
    run_request::{CancelOptions, StartOptions},
};

/// A workflow with the types of its input and its output. Made by [`Client::workflow`].
///
/// ```no_run
/// use muster_sdk::Client;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize)]
/// struct Order { id: String, total: f64 }
///
/// #[derive(Deserialize)]
/// struct Receipt { number: String }
///
/// # async fn example() -> Result<(), muster_sdk::ClientError> {
/// let client = Client::new(["http://127.0.0.1:8081"], "mst_key")?;
/// let orders = client.workflow::<Order, Receipt>("order");
/// let run = orders.start(&Order { id: "4711".into(), total: 12.5 }).await?;
/// run.signal("approved", &"ada").await?;
/// println!("{}: receipt {}", run.id(), run.result().await?.number);
/// # Ok(())
/// # }
/// ```
pub struct WorkflowHandle<In: ?Sized, Out> {
    client: Client,
    name: String,
    types: PhantomData<fn(&In) -> Out>,
}

/// A run with the type of its output.
pub struct RunHandle<Out> {
    client: Client,
    id: RunId,
    output: PhantomData<fn() -> Out>,
}

impl Client {
    /// A workflow whose input and output have these types. Asks nothing of the gateway.
    pub fn workflow<In: ?Sized, Out>(&self, name: impl Into<String>) -> WorkflowHandle<In, Out> {
        WorkflowHandle { client: self.clone(), name: name.into(), types: PhantomData }
    }

    /// A run whose output has this type. Asks nothing of the gateway.
    pub fn run<Out>(&self, id: RunId) -> RunHandle<Out> {
        RunHandle { client: self.clone(), id, output: PhantomData }
    }
}

impl<In: Serialize + ?Sized, Out> WorkflowHandle<In, Out> {
    /// The name of the workflow.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a run of the latest version.
    pub async fn start(&self, input: &In) -> Result<RunHandle<Out>, ClientError> {
        self.start_with(input, StartOptions::new()).await
    }

    /// Starts a run with options.
    pub async fn start_with(&self, input: &In, options: StartOptions) -> Result<RunHandle<Out>, ClientError> {
        let started = self.client.start_run(&self.name, input, options).await?;
        Ok(self.client.run(started.run.id))
    }
}

impl<Out> RunHandle<Out> {
    /// The id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// The run as it is now, with its steps.
    pub async fn get(&self) -> Result<Run, ClientError> {
        self.client.get_run(self.id).await
    }

    /// The state of the run, as the gateway names it.
    pub async fn state(&self) -> Result<String, ClientError> {
        Ok(self.get().await?.state)
    }

    /// Sends a signal to the run, which keeps it until a step reads it.
    pub async fn signal(&self, name: &str, value: &(impl Serialize + ?Sized)) -> Result<(), ClientError> {
        self.client.signal_run(self.id, name, value).await.map(drop)
    }

    /// Cancels the run; its compensations run.
    pub async fn cancel(&self) -> Result<Run, ClientError> {
        self.client.cancel_run(self.id, &CancelOptions::new()).await
    }
}

impl<Out: DeserializeOwned> RunHandle<Out> {
    /// Waits for the end of the run, however long it takes, and returns its output. [`ClientError::RunEnded`] if it did
    /// not succeed.
    pub async fn result(&self) -> Result<Out, ClientError> {
        loop {
            match self.result_within(Duration::from_secs(600)).await {
                Err(ClientError::NotDone(_)) => {}
                ended => return ended,
            }
        }
    }

    /// The same, for at most this long. [`ClientError::NotDone`] after that.
    pub async fn result_within(&self, limit: Duration) -> Result<Out, ClientError> {
        let run = self.client.wait_run(self.id, limit).await?;
        if run.succeeded() {
            return run.output_as();
        }
        Err(ClientError::RunEnded { run: run.id, state: run.state, error: run.error.map(Box::new) })
    }
}

impl<In: ?Sized, Out> Clone for WorkflowHandle<In, Out> {
    fn clone(&self) -> Self {
        WorkflowHandle { client: self.client.clone(), name: self.name.clone(), types: PhantomData }
    }
}

impl<Out> Clone for RunHandle<Out> {
    fn clone(&self) -> Self {
        RunHandle { client: self.client.clone(), id: self.id, output: PhantomData }
    }
}

impl<In: ?Sized, Out> fmt::Debug for WorkflowHandle<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowHandle").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<Out> fmt::Debug for RunHandle<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("id", &self.id).finish_non_exhaustive()
    }
}
