//! `muster worker drain ID`: asks a worker to drain.

use muster_domain::WorkerId;

use crate::{
    api::Call,
    commands::Caller,
    outcome::Failure,
    output::{self, Format},
};

pub(super) async fn run(caller: &Caller, id: &WorkerId) -> anyhow::Result<()> {
    let call = Call::post(format!("/workers/{id}/drain"), String::new()).repeatable();
    let answer = caller.api.call(&call).await.map_err(Failure::from)?;
    output::line(match caller.format {
        Format::Json => answer.text,
        _ => format!("worker {id} drains; `muster worker list` shows it until it has ended"),
    });
    Ok(())
}
