//! The command line: one file per subcommand, and the few lines that turn arguments into a run. Everything runs on
//! one thread; `dev` relies on that, because its child processes are bound to the thread that started them.

mod audit;
mod backup;
mod bench;
mod cluster;
mod config;
pub(crate) mod dev;
mod dlq;
mod doctor;
mod drill;
mod ended;
mod job;
mod key;
mod label;
mod operation;
mod run;
mod stack;
mod status;
mod topic;
mod value;
mod whoami;
mod worker;
mod workflow;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    api::Api,
    outcome::{self, Failure},
    output::{Asked, Format},
    target::Target,
};

/// Muster: a distributed job coordinator
#[derive(Parser, Debug)]
#[command(name = "muster", version, about, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    target: Target,

    /// Output format: a table, a table with every column (wide), JSON, or YAML (of `workflow get`)
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Asked,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Dev(dev::Dev),
    /// Run workers, list them and drain them
    #[command(subcommand)]
    Worker(worker::Worker),
    /// Submit, show, watch, cancel and retry jobs
    #[command(subcommand)]
    Job(job::Job),
    /// Dead letters: list, count, retry and delete them
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// List, show and cancel bulk operations
    #[command(subcommand)]
    Operation(operation::Operation),
    /// Settings of topics: limits, defaults, pause
    #[command(subcommand)]
    Topic(topic::Topic),
    /// Run-time settings of all replicas
    #[command(subcommand)]
    Config(config::Config),
    /// Read and verify the audit log
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Create, list, rotate and delete API keys
    #[command(subcommand)]
    Key(key::Key),
    #[command(name = "whoami")]
    WhoAmI(whoami::WhoAmI),
    /// Write or show the state file, with which other commands find a stack
    #[command(subcommand)]
    Stack(stack::StackCommand),
    Status(status::Status),
    Replicas(cluster::Replicas),
    Loops(cluster::Loops),
    Locks(cluster::Locks),
    Doctor(doctor::Doctor),
    /// Definitions of workflows: check, draw, store, list and delete them
    #[command(subcommand)]
    Workflow(workflow::Workflow),
    /// Start, watch, explain, signal, cancel and rerun runs of workflows
    #[command(subcommand)]
    Run(run::Run),
    /// Back up Redis, verify a backup, restore one
    #[command(subcommand)]
    Backup(backup::Backup),
    Bench(bench::Bench),
    Drill(drill::Drill),
}

/// The API that a command calls, and its output format.
pub(crate) struct Caller {
    pub(crate) api: Api,
    pub(crate) format: Format,
}

/// Parses the arguments and runs the command.
pub(crate) fn run() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return outcome::report(Err(error.into())),
    };
    outcome::report(runtime.block_on(cli.run()))
}

impl Cli {
    async fn run(self) -> anyhow::Result<()> {
        let Cli { target, output, command } = self;
        if output == Asked::Yaml && !matches!(&command, Command::Workflow(workflow) if workflow.writes_yaml()) {
            return Err(Failure::usage("only `muster workflow get` writes YAML; use -o json").into());
        }
        let format = output.settle();
        let caller = || anyhow::Ok(Caller { api: Api::new(target.door()?)?, format });
        match command {
            Command::Dev(dev) => dev.run(target.state_file.as_deref()).await,
            Command::Worker(worker) => worker.run(&target, format).await,
            Command::Job(job) => job.run(&caller()?).await,
            Command::Dlq(dlq) => dlq.run(&caller()?).await,
            Command::Operation(operation) => operation.run(&caller()?).await,
            Command::Topic(topic) => topic.run(&caller()?).await,
            Command::Config(config) => config.run(&caller()?).await,
            Command::Audit(audit) => audit.run(&caller()?).await,
            Command::Key(key) => key.run(&caller()?).await,
            Command::WhoAmI(whoami) => whoami.run(&caller()?).await,
            Command::Replicas(replicas) => replicas.run(&caller()?).await,
            Command::Loops(loops) => loops.run(&caller()?).await,
            Command::Locks(locks) => locks.run(&caller()?).await,
            Command::Doctor(doctor) => doctor.run(&caller()?).await,
            Command::Workflow(workflow) => workflow.run(output, format, caller).await,
            Command::Run(run) => run.run(&caller()?).await,
            Command::Stack(stack) => stack.run(&target, format).await,
            Command::Backup(backup) => backup.run(&target, format).await,
            Command::Status(status) => status.run(&caller()?, target.stack()?).await,
            Command::Bench(bench) => bench.run(&target, format).await,
            Command::Drill(drill) => drill.run(&target, format).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn whatever_may_be_missing_can_be_listed() {
        for noun in crate::api::NOUNS {
            let listed = Cli::try_parse_from(["muster", noun, "list"]);
            assert!(listed.is_ok(), "muster {noun} list, as hints say: {listed:?}");
        }
    }

    #[test]
    fn the_help_of_dev_says_where_its_state_file_goes() {
        let help = Cli::try_parse_from(["muster", "dev", "--help"]).unwrap_err().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("of `dev`, stack.json in --dir]"), "{help}");
        assert!(words.contains("and the state file are kept [default: .muster]"), "{help}");
    }

    #[test]
    fn global_flags_stand_before_and_after_the_command() {
        for line in ["muster --tenant a job get x -o json", "muster job get x --tenant a --output json"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!((cli.target.tenant.as_deref(), cli.output), (Some("a"), Asked::Json));
        }
        assert!(Cli::try_parse_from(["muster", "job", "submit"]).is_err(), "neither topic nor file");
    }
}
