//! Precedence, faults, secrets.

use std::{collections::BTreeMap, io::Write, net::SocketAddr, time::Duration};

use muster_chassis::{
    Setting, Values,
    settings::{
        self, Ask, Faults, Loaded, Origin,
        baseline::{
            INSTANCE_ID, NATS_REPLICAS, NATS_USE_JETSTREAM, REDIS_CALL_TIMEOUT, REDIS_CONNECT_TIMEOUT, REDIS_URL,
            RUNTIME_THREADS,
        },
    },
};
use muster_telemetry::Secret;

muster_chassis::settings! {
    const OWN = these;
    const ADMIN_ADDR: Setting<SocketAddr> = settings::admin_addr(":9092");
    const TOPICS: Setting<String> =
        Setting::choice("topics", "MUSTER_TOPICS", &["open", "declared"], "Topics.").or("open");
    const LIMIT_RPS: Setting<usize> =
        Setting::count("limit_rps", "API_RATE_LIMIT_RPS", 0..=1_000_000, "Rate.").or("2000");
    const SHARED_LIMIT: Setting<bool> = Setting::flag("shared_limit", "REDIS_RATE_LIMIT", "Shared limit.").or("true");
    const API_KEY: Setting<Option<Secret>> = Setting::text("api_key", "MUSTER_API_KEY", "Keys.").secret();
    const PROXIES: Setting<Vec<String>> = Setting::list("proxies", "MUSTER_TRUSTED_PROXIES", "Proxies.");
    const GRPC_ADDR: Setting<Option<SocketAddr>> =
        Setting::addr("grpc_addr", "MUSTER_GRPC_ADDR", "gRPC.").not_yet_used("no gRPC");
    const SCRUB_INTERVAL: Setting<Duration> =
        settings::loop_interval("loop_scrub_interval", "MUSTER_LOOP_SCRUB_INTERVAL", "5s");
}

fn load(args: &[&str], env: &[(&str, &str)]) -> Result<Loaded, Faults> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let mut map: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    map.entry("HOSTNAME".to_owned()).or_insert("host-7".to_owned());
    settings::load("muster-test", OWN, &args, &map)
}

fn values(args: &[&str], env: &[(&str, &str)]) -> Values {
    load(args, env).unwrap_or_else(|faults| panic!("{faults}")).values
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn defaults_hold_when_nobody_says_anything() {
    let values = values(&[], &[]);
    assert_eq!(values.get(REDIS_URL), "redis://127.0.0.1:6379");
    assert_eq!(values.get(INSTANCE_ID), "host-7");
    assert_eq!(values.get(ADMIN_ADDR), "0.0.0.0:9092".parse().unwrap());
    assert_eq!(values.get(RUNTIME_THREADS), 1);
    assert_eq!(values.get(SCRUB_INTERVAL), Duration::from_secs(5));
    assert!(values.get(NATS_USE_JETSTREAM) && values.get(SHARED_LIMIT));
    assert!(values.get(API_KEY).is_none());
    assert_eq!(values.get(PROXIES), Vec::<String>::new());
    assert_eq!(values.origin(TOPICS), Origin::Default);
}

#[test]
fn flags_beat_the_environment_and_the_environment_beats_the_file() {
    let file =
        file("limit_rps = 1\ntopics = 'declared'\nnats_replicas = 3\nproxies = ['a', 'b']\nshared_limit = false");
    let path = file.path().to_str().unwrap();
    let values = values(
        &["--config", path, "--limit-rps=3"],
        &[("API_RATE_LIMIT_RPS", "2"), ("NATS_REPLICAS", "5"), ("MUSTER_TOPICS", "")],
    );
    assert_eq!((values.get(LIMIT_RPS), values.origin(LIMIT_RPS)), (3, Origin::Flag));
    assert_eq!((values.get(NATS_REPLICAS), values.origin(NATS_REPLICAS)), (5, Origin::Environment));
    assert_eq!((values.get(TOPICS), values.origin(TOPICS)), ("declared", Origin::File));
    assert_eq!(values.get(PROXIES), ["a", "b"]);
    assert!(!values.get(SHARED_LIMIT));
}

#[test]
fn every_fault_is_listed_at_once_with_a_suggestion() {
    let file = file("redis_ulr = 'x'\nlimit_rps = -1\n[redis]\nurl = 'x'");
    let faults = load(
        &[
            "--config",
            file.path().to_str().unwrap(),
            "--nats-ulr",
            "nats://x",
            "--topics",
            "opne",
            "stray",
            "--admin-addr",
        ],
        &[
            ("REDIS_POOL_SIZE", "many"),
            ("NATS_USE_JETSTREAM", "false"),
            ("MUSTER_LOOP_SCRUB_INTERVAL", "10ms"),
            ("REDIS_RATE_LIMIT", "maybe"),
            ("REDIS_URL", "http://user:hunter2@x"),
            ("MUSTER_INSTANCE_ID", "a:b"),
            ("MUSTER_LOG", "muster_store=loudest"),
        ],
    )
    .unwrap_err();
    let text = faults.to_string();
    for expected in [
        "--nats-ulr: unknown flag; did you mean --nats-url?",
        "--topics: `opne` is not one of open, declared; did you mean open?",
        "stray: unexpected argument",
        "--admin-addr: needs a value",
        ", redis_ulr: unknown key; did you mean redis_url?",
        ", limit_rps: -1 is outside 0 to 1000000",
        ", redis: unknown key",
        "REDIS_POOL_SIZE: `many` is not a whole number",
        "NATS_USE_JETSTREAM: false is refused: without JetStream an offer could be lost",
        "MUSTER_LOOP_SCRUB_INTERVAL: 10ms is outside 1s to 1d",
        "REDIS_RATE_LIMIT: `maybe` is neither true nor false",
        "REDIS_URL: scheme `http` is not one of",
        "MUSTER_INSTANCE_ID: `a:b` is not a name",
        "MUSTER_LOG: `muster_store=loudest` is not a log filter",
    ] {
        assert!(text.contains(expected), "missing: {expected}\nin:\n{text}");
    }
    assert_eq!(faults.faults.len(), 14, "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_bad_value_is_a_fault_even_where_a_stronger_one_hides_it() {
    let faults = load(&["--limit-rps", "5"], &[("API_RATE_LIMIT_RPS", "x")]).unwrap_err();
    assert_eq!(faults.faults.len(), 1, "{faults}");
}

#[test]
fn unknown_muster_variables_only_warn() {
    let env = [("MUSTER_INSTANCE_IDD", "a"), ("MUSTER_GATEWAY_SERVICE_PORT_HTTP", "8081"), ("REDIS_ODD", "x")];
    let loaded = load(&[], &env).unwrap();
    assert_eq!(
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "MUSTER_GATEWAY_SERVICE_PORT_HTTP: unknown variable",
            "MUSTER_INSTANCE_IDD: unknown variable; did you mean MUSTER_INSTANCE_ID?"
        ]
    );
}

#[test]
fn the_patience_with_redis_has_bounds() {
    let ms = |setting: Setting<Duration>, env: &[(&str, &str)]| values(&[], env).get(setting);
    assert_eq!(ms(REDIS_CALL_TIMEOUT, &[]), Duration::from_secs(2));
    assert_eq!(ms(REDIS_CONNECT_TIMEOUT, &[("REDIS_CONNECT_TIMEOUT_MS", "50")]), Duration::from_millis(50));
    let bad =
        [("REDIS_CONNECT_TIMEOUT_MS", "49"), ("REDIS_RESPONSE_TIMEOUT_MS", "60001"), ("REDIS_CALL_TIMEOUT_MS", "1s")];
    let text = load(&[], &bad).unwrap_err().to_string();
    for expected in [
        "REDIS_CONNECT_TIMEOUT_MS: 49 is outside 50 to 60000",
        "REDIS_RESPONSE_TIMEOUT_MS: 60001 is outside 50 to 60000",
        "REDIS_CALL_TIMEOUT_MS: `1s` is not a whole number",
    ] {
        assert!(text.contains(expected), "missing: {expected}\nin:\n{text}");
    }
}

#[test]
fn a_setting_without_effect_is_warned_of_by_name_wherever_it_is_given() {
    let with_file = file("grpc_addr = ':1'");
    let path = format!("--config={}", with_file.path().display());
    for (args, env) in
        [(vec![path.as_str()], vec![]), (vec!["--grpc-addr=:1"], vec![]), (vec![], vec![("MUSTER_GRPC_ADDR", ":1")])]
    {
        let loaded = load(&args, &env).unwrap();
        let said: Vec<_> = loaded.warnings.iter().map(|w| (w.event(), w.setting(), w.to_string())).collect();
        let text = "MUSTER_GRPC_ADDR: not yet used, this has no effect: no gRPC".to_owned();
        assert_eq!(said, [("unused_setting", "MUSTER_GRPC_ADDR", text)]);
        assert!(loaded.values.print().contains("not yet used"), "{}", loaded.values.print());
    }
    assert_eq!(load(&[], &[]).unwrap().warnings, [], "who does not give it is not bothered");
    let faults = load(&[], &[("MUSTER_GRPC_ADDR", "nowhere")]).unwrap_err();
    assert_eq!(faults.faults.len(), 1, "a bad value is a fault all the same: {faults}");
    assert!(settings::reference("muster-test", OWN).contains("gRPC. Not yet used: no gRPC. |"));
    assert!(settings::help("muster-test", OWN).contains("gRPC. Not yet used: no gRPC."));
}

#[test]
fn words_for_yes_and_no_are_read() {
    for (text, expected) in [("true", true), ("1", true), ("YES", true), ("false", false), ("0", false), ("no", false)]
    {
        assert_eq!(values(&[], &[("REDIS_RATE_LIMIT", text)]).get(SHARED_LIMIT), expected, "{text}");
    }
    assert!(values(&["--shared-limit", "--limit-rps", "1"], &[]).get(SHARED_LIMIT));
}

#[test]
fn secrets_are_masked_wherever_settings_are_shown() {
    let values = values(
        &["--redis-url", "redis://me:hunter2@a:1,redis://me:hunter3@b:2", "--limit-rps", "7"],
        &[("MUSTER_API_KEY", "mst_one,mst_two"), ("NATS_URL", "nats://token9@n:4222")],
    );
    assert_eq!(values.get(API_KEY).unwrap().expose(), "mst_one,mst_two");
    for text in [values.print(), format!("{values:?}")] {
        assert!(text.contains("redis_url = \"redis://me:***@a:1,redis://me:***@b:2\" # flag, --redis-url"), "{text}");
        assert!(text.contains("limit_rps = 7 # flag, --limit-rps"), "{text}");
        assert!(text.contains("api_key = \"***\" # environment, MUSTER_API_KEY"), "{text}");
        assert!(["hunter", "mst_", "token9"].iter().all(|secret| !text.contains(secret)), "{text}");
    }
}

#[test]
fn a_printed_configuration_can_be_read_again() {
    let printed = values(&["--limit-rps", "9", "--proxies", "a,b"], &[]).print();
    let file = file(&printed);
    let again = values(&["--config", file.path().to_str().unwrap()], &[]);
    assert_eq!(again.get(LIMIT_RPS), 9);
    assert_eq!(again.get(PROXIES), ["a", "b"]);
    assert_eq!(again.origin(REDIS_URL), Origin::File);
}

#[test]
fn a_secret_may_come_from_a_file() {
    let secret = file("mst_from_file\n");
    let path = secret.path().to_str().unwrap();
    assert_eq!(values(&[], &[("MUSTER_API_KEY_FILE", path)]).get(API_KEY).unwrap().expose(), "mst_from_file");
    assert_eq!(
        values(&["--api-key-file", path], &[("MUSTER_API_KEY", "x")]).get(API_KEY).unwrap().expose(),
        "mst_from_file"
    );

    let both = load(&[], &[("MUSTER_API_KEY_FILE", path), ("MUSTER_API_KEY", "x")]).unwrap_err();
    assert!(both.to_string().contains("MUSTER_API_KEY_FILE: api_key is also set"), "{both}");
    let missing = load(&[], &[("MUSTER_API_KEY_FILE", "/nowhere/key")]).unwrap_err();
    assert!(missing.to_string().contains("cannot read /nowhere/key"), "{missing}");
    let empty = file("\n");
    let empty = load(&[], &[("MUSTER_API_KEY_FILE", empty.path().to_str().unwrap())]).unwrap_err();
    assert!(empty.to_string().contains("is empty"), "{empty}");
}

#[test]
fn a_settings_file_that_cannot_be_read_is_one_fault_with_its_line() {
    let broken = file("limit_rps = 1\ntopics = [\n");
    let faults = load(&["--config", broken.path().to_str().unwrap()], &[]).unwrap_err();
    assert_eq!(faults.faults.len(), 1, "{faults}");
    assert!(faults.to_string().contains("line 2"), "{faults}");
    assert!(load(&["--config", "/nowhere.toml"], &[]).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn help_and_version_win_whatever_else_is_asked() {
    let asked = |args: &[&str]| settings::asked(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
    assert_eq!(asked(&["--nonsense", "--check-config", "-h"]), Ask::Help);
    assert_eq!(asked(&["--version"]), Ask::Version);
    assert_eq!(asked(&["--print-config"]), Ask::PrintConfig);
    assert_eq!(asked(&["--redis-url", "x"]), Ask::Run);
}

#[test]
fn the_reference_lists_every_setting() {
    let (reference, help) = (settings::reference("muster-test", OWN), settings::help("muster-test", OWN));
    for setting in settings::with_common(OWN) {
        assert!(reference.contains(&format!("| `{}` | `{}` |", setting.env, setting.key)), "{reference}");
        assert!(help.contains(&setting.flag()) && help.contains(setting.doc), "{help}");
    }
    assert_eq!(
        reference.matches("| `MUSTER_ADMIN_ADDR` |").count(),
        1,
        "the service's own entry replaces the shared one"
    );
    assert!(reference.contains("open\\|declared"), "{reference}");
}

#[test]
#[should_panic(expected = "setting `redis_ulr` is not declared")]
fn asking_for_an_undeclared_setting_is_a_mistake_of_the_program() {
    const FOREIGN: Setting<Option<String>> = Setting::text("redis_ulr", "REDIS_ULR", "Of another service.");
    let _ = values(&[], &[]).get(FOREIGN);
}

#[test]
fn nodes_of_a_redis_cluster_share_the_scheme_of_the_first() {
    for url in ["redis+cluster://a,b", "redis+cluster://:pw@a:1, b:2,c:3", "redis://a:1,redis://b:2", "rediss://a,b"] {
        assert_eq!(values(&[], &[("REDIS_URL", url)]).get(settings::baseline::REDIS_URL), url);
    }
    for (name, url, says) in [
        ("REDIS_URL", "a,b", "`a` is not a URL"),
        ("REDIS_URL", "a,redis+cluster://b", "`a` is not a URL"),
        ("REDIS_URL", "redis+cluster://a,", "has no host"),
        ("REDIS_URL", "redis+cluster://a,:6379", "has no host"),
        ("REDIS_URL", "redis+cluster://a,http://b", "scheme `http`"),
        ("NATS_URL", "nats://a,b", "`b` is not a URL"),
    ] {
        let faults = load(&[], &[(name, url)]).unwrap_err().to_string();
        assert!(faults.contains(says) && faults.contains(name), "{url}: {faults}");
    }
}
