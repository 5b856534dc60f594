//! Compiles `proto/` without needing protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
    let files = ["muster/v1/envelope.proto", "muster/v1/job.proto", "muster/v1/worker.proto"];
    println!("cargo:rerun-if-changed={root}");
    let set = protox::compile(files, [root])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(set)?;
    Ok(())
}
