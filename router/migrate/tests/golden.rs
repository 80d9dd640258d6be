//! Real command lines and manifests, and the configurations that they become.
//!
//! `TAILROUTE_BLESS=1 cargo test -p tailroute-migrate --test golden` writes the results again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what helpers cannot do fails the test"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Overrides, PolicyName, Sources, load, load_file};
use migrate::{Input, Migration, Source, migrate};

/// The inputs, each with the router that is detected.
const INPUTS: &[(&str, Source)] = &[
    ("sglang-cache-aware.sh", Source::SglangRouter),
    ("sglang-variables.sh", Source::SglangRouter),
    ("sglang-launch-server.sh", Source::SglangRouter),
    ("sglang-compose-pd.yaml", Source::SglangRouter),
    ("smg-rollouts.sh", Source::SglangRouter),
    ("sglang-deployment.yaml", Source::SglangRouter),
    ("smg-production.sh", Source::SglangRouter),
    ("sglang-pd.sh", Source::SglangRouter),
    ("vllm-router-data-parallel.sh", Source::VllmRouter),
    ("vllm-router-shell-in-docker.sh", Source::VllmRouter),
    ("vllm-router-deployment.yaml", Source::VllmRouter),
    ("vllm-router.service", Source::VllmRouter),
    ("production-stack-static.sh", Source::ProductionStack),
    ("production-stack-arguments.sh", Source::ProductionStack),
    ("production-stack-values.yaml", Source::ProductionStack),
    ("production-stack-rendered.yaml", Source::ProductionStack),
    ("production-stack-dynamic.yaml", Source::ProductionStack),
    ("nginx-least-conn.conf", Source::Nginx),
    ("nginx-configmap.yaml", Source::Nginx),
    ("nginx-path-per-model.conf", Source::Nginx),
    ("nginx-tls.conf", Source::Nginx),
    ("nginx-one-worker.conf", Source::Nginx),
    ("nginx-sticky.conf", Source::Nginx),
];

fn fixture(folder: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(folder)
        .join(name)
}

fn migrated(name: &str) -> Migration {
    let text = std::fs::read_to_string(fixture("inputs", name)).unwrap();
    migrate(Input::Text { name, text: &text }, None).unwrap()
}

fn loaded(toml: &str) -> config::Config {
    let sources = Sources {
        file: Some(("tailroute.toml", toml)),
        ..Sources::default()
    };
    load(&sources).unwrap_or_else(|problems| panic!("{problems}\n{toml}"))
}

#[test]
fn each_input_becomes_its_golden_configuration_which_loads() {
    let mut stale = Vec::new();
    for (name, source) in INPUTS {
        let migration = migrated(name);
        assert_eq!(migration.source, *source, "{name}");
        let golden = fixture("golden", &format!("{name}.toml"));
        if std::env::var_os("TAILROUTE_BLESS").is_some() {
            std::fs::write(&golden, &migration.toml).unwrap();
        }
        if std::fs::read_to_string(&golden).unwrap_or_default() != migration.toml {
            stale.push(*name);
        }
        load_file(Some(&golden), BTreeMap::new(), Overrides::default()).unwrap();
    }
    assert!(stale.is_empty(), "differ from their golden files: {stale:?}");
}

#[test]
fn every_input_has_a_row_above() {
    let mut found: Vec<String> = std::fs::read_dir(fixture("inputs", ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let mut listed: Vec<&str> = INPUTS.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

#[test]
fn a_command_line_is_carried_over_by_its_meaning() {
    let config = loaded(&migrated("smg-production.sh").toml);
    assert_eq!(config.server.listen.to_string(), "0.0.0.0:8443");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:29000");
    assert_eq!(config.workers.len(), 2);
    assert_eq!(config.workers[0].block_size, 32);
    assert_eq!(config.routing.policy, PolicyName::LeastLoaded);
    assert_eq!(config.keys.len(), 2);
    assert_eq!(config.keys[1].name, "team-a");
    assert_eq!(config.limits.retries, 2);
    assert_eq!(
        config.admission.max_concurrent_per_worker.map(u32::from),
        Some(128)
    );
    assert_eq!(config.admission.queue_timeout.as_secs(), 30);
    assert_eq!(config.health.interval.as_secs(), 10);
    assert!(config.health.timeout <= config.health.interval);
    assert_eq!(config.limits.drain_timeout.as_secs(), 240);
    let tls = config.tls.server.unwrap();
    assert_eq!(tls.identity.cert, Path::new("/etc/tls/tls.crt"));
    assert_eq!(
        config.traces.unwrap().endpoint.to_string(),
        "http://otel-collector:4317/"
    );
    let ranks = loaded(&migrated("vllm-router-data-parallel.sh").toml);
    assert_eq!(ranks.workers.len(), 16);
}

#[test]
fn an_nginx_configuration_is_carried_over_by_its_meaning() {
    let config = loaded(&migrated("nginx-tls.conf").toml);
    let urls: Vec<String> = config
        .workers
        .iter()
        .map(|worker| worker.url.to_string())
        .collect();
    assert_eq!(urls, ["http://10.0.0.11:8000/", "http://10.0.0.12:8000/"]);
    assert_eq!(config.routing.policy, PolicyName::PowerOfTwo);
    assert_eq!(config.server.listen.to_string(), "0.0.0.0:443");
    assert_eq!(config.limits.max_body_bytes.get(), 50 << 20);
    assert_eq!(config.limits.first_byte_timeout.as_secs(), 1_800);
    assert_eq!(config.limits.retries, 2);
    assert_eq!(config.http.trusted_proxies.len(), 2);
    let sticky = loaded(&migrated("nginx-sticky.conf").toml);
    assert_eq!(sticky.routing.policy, PolicyName::ConsistentHash);
    assert_eq!((sticky.workers.len(), sticky.failure.max_ejected_share), (2, 0.0));
}

#[test]
fn secrets_are_in_no_output() {
    let secrets = [
        "sk-0123456789abcdef0123",
        "0123456789abcdef0123456789",
        "hunter2",
        "smg:secret",
        "frobnicate-token abc",
        "sk-of-the-workers",
        "abc@sentry",
    ];
    for (name, _) in INPUTS {
        let migration = migrated(name);
        for secret in secrets {
            assert!(!migration.toml.contains(secret), "{name}: {secret}");
            assert!(
                migration.warnings.iter().all(|line| !line.contains(secret)),
                "{name}: {secret}"
            );
        }
    }
}

#[test]
fn what_has_no_equivalent_is_both_in_the_file_and_in_the_warnings() {
    let migration = migrated("smg-production.sh");
    for option in [
        "--frobnicate 7",
        "--mesh-peer-urls 10.0.0.2:39527 10.0.0.3:39527",
        "--tool-call-parser qwen",
        "--control-plane-api-keys …",
        "grpc://gpu-2.example.com:50051",
        "--retry-initial-backoff-ms 100",
    ] {
        let named = |line: &str| line.contains(option);
        assert!(migration.warnings.iter().any(|line| named(line)), "{option}");
        assert!(
            migration
                .toml
                .lines()
                .any(|line| line.starts_with("# - ") && named(line)),
            "{option}"
        );
    }
}
