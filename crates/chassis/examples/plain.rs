//! The smallest service: a few settings, one loop, one stop stage. The tests of the chassis run
//! it as a process.

use std::{process::ExitCode, time::Duration};

use muster_chassis::{Budget, Chassis, Counts, Everyone, Kind, Loop, Safety, Setting, settings};

const SETTINGS: &[Setting] = &[
    settings::admin_addr("127.0.0.1:0"),
    settings::loop_interval("loop_count_interval", "MUSTER_LOOP_COUNT_INTERVAL", "5s"),
    Setting::new("greeting", "MUSTER_GREETING", Kind::Choice(&["hello", "goodbye"]), "What to say.").or("hello"),
    Setting::new("hang", "MUSTER_HANG", Kind::Choice(&["never", "setup", "stop"]), "Where to hang, for tests.")
        .or("never"),
    Setting::new("api_key", "MUSTER_API_KEY", Kind::Text, "A key.").secret(),
    Setting::new("grpc_addr", "MUSTER_GRPC_ADDR", Kind::Addr, "Where gRPC is served.").not_yet_used("there is none"),
];

struct Count {
    n: u64,
}

impl Loop for Count {
    const NAME: &'static str = "count";
    const SAFE: Safety = Safety::Idempotent { why: "it only counts its own passes", duplicate_costs: "a pass" };
    type Lease = ();

    async fn run_once(&mut self, _: &(), _: Budget) -> anyhow::Result<Counts> {
        self.n += 1;
        let mut counts = Counts::none();
        counts.add("passes", self.n);
        Ok(counts)
    }
}

async fn body(chassis: Chassis) -> anyhow::Result<()> {
    let hang = chassis.values.text("hang").to_owned();
    if hang == "setup" {
        std::future::pending::<()>().await;
    }
    if hang == "stop" {
        chassis.stop.stage("hanging", std::future::pending());
    }
    let loops = chassis.loops.clone();
    let count = loops.register::<Count>(chassis.values.duration("loop_count_interval"));
    count.start(Count { n: 0 }, Everyone);
    chassis.stop.stage("loops", async move { drop(loops.stop(Duration::from_secs(5)).await) });
    chassis.run_until_stopped().await;
    Ok(())
}

fn main() -> ExitCode {
    muster_chassis::run("muster-plain", SETTINGS, &[], body)
}
