//! The smallest service: a few settings, one loop, one stop stage. The tests of the chassis run
//! it as a process.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use muster_chassis::{Budget, Chassis, Counts, Everyone, Loop, Safety, Setting, loops, settings};
use muster_telemetry::Secret;

settings! {
    const SETTINGS = these;
    const ADMIN_ADDR: Setting<SocketAddr> = settings::admin_addr("127.0.0.1:0");
    const EVERY: Setting<Duration> = loops::interval::<Count>();
    const GREETING: Setting<String> =
        Setting::choice("greeting", "MUSTER_GREETING", &["hello", "goodbye"], "What to say.").or("hello");
    const HANG: Setting<String> =
        Setting::choice("hang", "MUSTER_HANG", &["never", "setup", "stop"], "Where to hang, for tests.").or("never");
    const API_KEY: Setting<Option<Secret>> = Setting::text("api_key", "MUSTER_API_KEY", "A key.").secret();
    const GRPC_ADDR: Setting<Option<SocketAddr>> =
        Setting::addr("grpc_addr", "MUSTER_GRPC_ADDR", "Where gRPC is served.").not_yet_used("there is none");
}

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
    let hang = chassis.values.get(HANG).to_owned();
    if hang == "setup" {
        std::future::pending::<()>().await;
    }
    if hang == "stop" {
        chassis.stop.stage("hanging", std::future::pending());
    }
    let loops = chassis.loops.clone();
    let count = loops.register::<Count>(chassis.values.get(EVERY));
    count.start(Count { n: 0 }, Everyone);
    chassis.stop.stage("loops", async move { drop(loops.stop(Duration::from_secs(5)).await) });
    chassis.run_until_stopped().await;
    Ok(())
}

fn main() -> ExitCode {
    muster_chassis::run("muster-plain", SETTINGS, &[], body)
}
