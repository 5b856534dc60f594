//! Precedence, faults, secrets.

use std::{collections::BTreeMap, io::Write, time::Duration};

use muster_chassis::{
    Kind, Setting, Values,
    settings::{self, Ask, Faults, Loaded, Origin},
};

const OWN: &[Setting] = &[
    settings::admin_addr(":9092"),
    Setting::new("topics", "MUSTER_TOPICS", Kind::Choice(&["open", "declared"]), "Topics.").or("open"),
    Setting::new("limit_rps", "API_RATE_LIMIT_RPS", Kind::Int { min: 0, max: 1_000_000 }, "Rate.").or("2000"),
    Setting::new("shared_limit", "REDIS_RATE_LIMIT", Kind::Bool, "Shared limit.").or("true"),
    Setting::new("api_key", "MUSTER_API_KEY", Kind::Text, "Keys.").secret(),
    Setting::new("proxies", "MUSTER_TRUSTED_PROXIES", Kind::List, "Proxies."),
    Setting::new("grpc_addr", "MUSTER_GRPC_ADDR", Kind::Addr, "gRPC.").not_yet_used("no gRPC"),
    settings::loop_interval("loop_scrub_interval", "MUSTER_LOOP_SCRUB_INTERVAL", "5s"),
];

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
    assert_eq!(values.text("redis_url"), "redis://127.0.0.1:6379");
    assert_eq!(values.text("instance_id"), "host-7");
    assert_eq!(values.addr("admin_addr"), "0.0.0.0:9092".parse().unwrap());
    assert_eq!(values.count("runtime_threads"), 1);
    assert_eq!(values.duration("loop_scrub_interval"), Duration::from_secs(5));
    assert!(values.flag("nats_use_jetstream") && values.flag("shared_limit"));
    assert_eq!(values.secret("api_key"), None);
    assert_eq!(values.list("proxies"), Vec::<String>::new());
    assert_eq!(values.origin("topics"), Origin::Default);
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
    assert_eq!((values.int("limit_rps"), values.origin("limit_rps")), (3, Origin::Flag));
    assert_eq!((values.int("nats_replicas"), values.origin("nats_replicas")), (5, Origin::Environment));
    assert_eq!((values.text("topics"), values.origin("topics")), ("declared", Origin::File));
    assert_eq!(values.list("proxies"), ["a", "b"]);
    assert!(!values.flag("shared_limit"));
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
        "--topics: `opne` is none of open, declared; did you mean open?",
        "stray: unexpected argument",
        "--admin-addr: needs a value",
        ", redis_ulr: unknown key; did you mean redis_url?",
        ", limit_rps: -1 is outside 0 to 1000000",
        ", redis: unknown key",
        "REDIS_POOL_SIZE: `many` is not a whole number",
        "NATS_USE_JETSTREAM: false is refused: the promises need it",
        "MUSTER_LOOP_SCRUB_INTERVAL: 10ms is outside 1s to 1d",
        "REDIS_RATE_LIMIT: `maybe` is neither true nor false",
        "REDIS_URL: scheme `http` is not one of",
        "MUSTER_INSTANCE_ID: `a:b` is no name",
        "MUSTER_LOG: `muster_store=loudest` is no log filter",
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
    let ms = |key: &str, env: &[(&str, &str)]| values(&[], env).millis(key);
    assert_eq!(ms("redis_call_timeout_ms", &[]), Duration::from_secs(2));
    assert_eq!(ms("redis_connect_timeout_ms", &[("REDIS_CONNECT_TIMEOUT_MS", "50")]), Duration::from_millis(50));
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
        assert_eq!(values(&[], &[("REDIS_RATE_LIMIT", text)]).flag("shared_limit"), expected, "{text}");
    }
    assert!(values(&["--shared-limit", "--limit-rps", "1"], &[]).flag("shared_limit"));
}

#[test]
fn secrets_are_masked_wherever_settings_are_shown() {
    let values = values(
        &["--redis-url", "redis://me:hunter2@a:1,redis://me:hunter3@b:2", "--limit-rps", "7"],
        &[("MUSTER_API_KEY", "mst_one,mst_two"), ("NATS_URL", "nats://token9@n:4222")],
    );
    assert_eq!(values.secret("api_key").unwrap().expose(), "mst_one,mst_two");
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
    assert_eq!(again.int("limit_rps"), 9);
    assert_eq!(again.list("proxies"), ["a", "b"]);
    assert_eq!(again.origin("redis_url"), Origin::File);
}

#[test]
fn a_secret_may_come_from_a_file() {
    let secret = file("mst_from_file\n");
    let path = secret.path().to_str().unwrap();
    assert_eq!(values(&[], &[("MUSTER_API_KEY_FILE", path)]).text("api_key"), "mst_from_file");
    assert_eq!(values(&["--api-key-file", path], &[("MUSTER_API_KEY", "x")]).text("api_key"), "mst_from_file");

    let both = load(&[], &[("MUSTER_API_KEY_FILE", path), ("MUSTER_API_KEY", "x")]).unwrap_err();
    assert!(both.to_string().contains("MUSTER_API_KEY_FILE: api_key is given as well"), "{both}");
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
    assert_eq!(reference.matches("MUSTER_ADMIN_ADDR").count(), 1, "the service's own entry replaces the shared one");
    assert!(reference.contains("open\\|declared"), "{reference}");
}

#[test]
#[should_panic(expected = "setting `redis_ulr` is not declared")]
fn asking_for_an_undeclared_setting_is_a_mistake_of_the_program() {
    let _ = values(&[], &[]).text("redis_ulr");
}
