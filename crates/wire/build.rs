//! Compiles `proto/` without needing protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Read at run time, not at compile time: checkouts may share their build output.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let root = std::path::Path::new(&here).join("../../proto");
    let files = ["muster/v1/envelope.proto", "muster/v1/job.proto", "muster/v1/worker.proto"];
    println!("cargo:rerun-if-changed={}", root.display());
    let set = protox::compile(files, [&root])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(set)?;
    Ok(())
}
