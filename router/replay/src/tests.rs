use std::path::Path;

use clap::Parser as _;

use super::*;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Returns sixty turns of as many conversations, a second apart, with TTFTs of 1 ms per token plus 5 ms.
fn turns() -> String {
    let turn = |at: u32| {
        let tokens = 100 + 40 * (at % 6);
        format!(
            r#"{{"ts":{at},"conv":{at},"turn":0,"prompt_tokens":{tokens},"response_tokens":1,"ttft_ms":{},"took_ms":{},"cached_tokens":0,"objective_ms":250}}"#,
            tokens + 5,
            tokens + 6
        ) + "\n"
    };
    (0..60).map(turn).collect()
}

fn fleet(alpha: f64, source: &str, since_s: f64) -> String {
    let settings = serde_json::to_string(&Settings::default()).unwrap();
    format!(
        r#"{{"fleet":{{"at_s":1,"settings_since_s":{since_s},"settings":{settings},"utilisation_window_ms":60000,"objective_ms":500,"objective_share":0.95,"next_prompt_tokens":200,"follows_hints":false,"workers":[{{"name":"a","alpha_ms_per_token":{alpha},"beta_ms":0,"gamma_ms_per_token2":0,"overhead_ms":5,"cost_source":"{source}","capacity_tokens":100000,"capacity_source":"reported"}}]}}}}"#
    ) + "\n"
}

const META: &str = "{\"meta\":{\"bs\":64,\"capture\":true,\"version\":2}}\n";
const OLD_META: &str = "{\"meta\":{\"bs\":64,\"capture\":true}}\n";
const ONE: &str = "[[workers]]\nname = \"a\"\nurl = \"http://10.0.0.1:1\"\n";

fn play(folder: &Path, capture: &str, config: Option<&str>, more: &[&str]) -> anyhow::Result<ReplayReport> {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("capture.jsonl"), capture).unwrap();
    let mut arguments = vec!["replay".to_owned(), "--capture".to_owned(), path("capture.jsonl")];
    if let Some(config) = config {
        std::fs::write(path("tailroute.toml"), config).unwrap();
        arguments.extend(["--config".to_owned(), path("tailroute.toml")]);
    }
    arguments.extend(more.iter().map(|one| (*one).to_owned()));
    evaluate(&Cli::parse_from(arguments).args)
}

#[test]
fn captured_costs_reproduce_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let capture = [META, &fleet(1.0, "learned", 0.0), &turns()].concat();
    for config in [
        None,
        Some(ONE),
        Some("[discovery.dns]\nsrv = [\"_http._tcp.engines\"]\n"),
    ] {
        let report = play(folder.path(), &capture, config, &[]).unwrap();
        assert_eq!(report.costs, "from the capture, learned", "{config:?}");
        let check = report.check.unwrap();
        assert_eq!(check.turns, 54);
        let (measured, simulated) = (check.measured, check.simulated);
        assert!(
            (measured.p95_ms - simulated.p95_ms).abs() < 1e-6,
            "with the overhead"
        );
        assert_eq!((measured.hit_ratio, simulated.hit_ratio), (Some(0.0), Some(0.0)));
        assert_eq!(report.workers, ["a"]);
    }
}

#[test]
fn a_calibration_in_the_configuration_prevails() {
    let folder = tempfile::tempdir().unwrap();
    let capture = [META, &fleet(9.0, "learned", 0.0), &turns()].concat();
    let calibrated = format!("{ONE}alpha_ms_per_token = 1.0\nbeta_ms = 0.0\n");
    let report = play(folder.path(), &capture, Some(&calibrated), &[]).unwrap();
    assert_eq!(report.costs, "from the configuration");
    assert!(report.check.unwrap().agrees());
}

#[test]
fn a_simulation_unlike_what_was_measured_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let old = [OLD_META, &turns()].concat();
    for config in [None, Some(ONE)] {
        let refused = play(folder.path(), &old, config, &[]).unwrap_err().to_string();
        for part in [
            "does not reproduce the captured turns: p50 205.0 ms measured",
            "within objective",
            "costs: assumed (α",
            "gpu-bench worker URL",
            "`--anyway`",
        ] {
            assert!(refused.contains(part), "{part} in {refused}");
        }
    }
    let wrong = [META, &fleet(2.0, "learned", 0.0), &turns()].concat();
    let refused = play(folder.path(), &wrong, None, &[]).unwrap_err().to_string();
    assert!(refused.contains("may be out of date"), "{refused}");
    let report = play(folder.path(), &wrong, None, &["--anyway"]).unwrap();
    assert!(!report.check.as_ref().unwrap().agrees());
    assert!(table::text(&report).contains("warning: the simulation does not reproduce"));
}

#[test]
fn workers_of_the_command_line_may_be_others_than_those_that_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let capture = [META, &fleet(1.0, "learned", 0.0), &turns()].concat();
    let report = play(folder.path(), &capture, None, &["--workers", "2", "--alpha", "3"]).unwrap();
    assert_eq!(
        (report.workers.len(), &*report.costs),
        (2, "from the command line")
    );
}

#[test]
fn turns_before_the_policy_in_force_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let since = |since_s| [META, &turns(), &fleet(9.0, "learned", since_s)].concat();
    assert!(
        play(folder.path(), &since(40.0), None, &[]).is_err(),
        "twenty are enough"
    );
    let report = play(folder.path(), &since(41.0), None, &[]).unwrap();
    assert!(report.check.is_none());
    assert!(table::text(&report).contains("not compared with measured times"));
}

#[test]
fn the_captured_policy_is_the_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = fleet(1.0, "learned", 0.0).replace(r#""policy":"tail""#, r#""policy":"round_robin""#);
    let capture = [META, &fleet, &turns()].concat();
    let configured = format!("[routing]\npolicy = \"random\"\n{ONE}");
    let report = play(folder.path(), &capture, Some(&configured), &[]).unwrap();
    assert_eq!(report.baseline.settings.policy.to_string(), "round_robin");
}
