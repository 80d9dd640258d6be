//! Each check on a fleet that is broken in one way, and all checks on a healthy one.

use serde_json::json;

use super::facts::Stream;
use super::facts::{DecisionFacts, Offset, Overload, SourceFacts, SourceFailure};
use super::facts::{Direct, Engine, HitFacts, Prompt};
use super::stream_probe::StreamError;
use super::*;

mod broken;

use broken::*;

const NOW: f64 = 1_795_000_000_000.0;

fn worker(name: &str) -> WorkerFacts {
    let mut worker: WorkerFacts = serde_json::from_value(json!({
        "name": name, "url": "http://10.0.0.1:8000/", "source": "configuration", "state": "ready", "well": true,
        "breaker": "closed", "in_flight": 2, "wait_ms": 12.0, "utilisation": 0.4,
        "cost": {
            "alpha_ms_per_token": 0.1, "beta_ms": 10.0, "gamma_ms_per_token2": 0.0, "floor_ms": 0.0,
            "overhead_ms": 2.0, "error_ms": 1.0,
        },
        "xi_tokens": 3880.0, "silent": 3, "capacity_tokens": 131_072, "held_tokens": 90_000, "events_live": true,
        "dialect": "tailroute", "hears_hints": true, "hints_waiting": 0, "models": ["m"],
        "capacity_source": "reported", "cost_source": "learned", "cost_answers": 200,
        "cached_tokens_reported": true, "events_source": "auto", "events_stored": 900,
        "ready_since_unix_ms": NOW - 86_400_000.0, "foreign_requests": 0,
    }))
    .unwrap();
    let prompt = |took_ms, cached| Prompt {
        took_ms,
        prompt_tokens: 1003,
        cached_tokens: Some(cached),
    };
    worker.direct = Direct {
        engine: Engine::Vllm,
        clock: Some(Offset {
            ms: 300.0,
            error_ms: 505.0,
        }),
        started_unix_ms: Some(NOW - 90_000_000.0),
        capacity_tokens: Some(131_072),
        caches_prefixes: Some(true),
        reports_cached_tokens: None,
        names_publisher: Some(true),
        prompts: Some(Ok([prompt(120.0, 0), prompt(20.0, 992)])),
        unreachable: None,
    };
    worker
}

/// Returns hits with these prompt tokens: all, available, captured and delivered.
fn hits([prompt, available, captured, delivered]: [u64; 4]) -> Option<HitFacts> {
    Some(HitFacts {
        prompt_tokens: prompt,
        available_tokens: available,
        captured_tokens: captured,
        delivered_tokens: delivered,
        verdict: "Most of the loss has a cause.".to_owned(),
    })
}

fn healthy() -> Facts {
    let turn = |at: u64| DecisionFacts {
        worker: if at.is_multiple_of(2) { "gpu-0" } else { "gpu-1" }.to_owned(),
        objective_ms: 400.0,
        uncached_tokens: 200 + at,
        cached_tokens: 3_000,
        reported_cached: None,
        is_late: false,
        arrived_unix_ms: NOW - 1_000.0 * at as f64,
    };
    Facts {
        hits: hits([100_000, 80_000, 79_000, 78_000]),
        router: "127.0.0.1:9090".to_owned(),
        workers: vec![worker("gpu-0"), worker("gpu-1")],
        turns: (0..100).map(turn).collect(),
        configuration: serde_json::from_value(json!({
            "generation": 1, "refused": null, "needs_restart": [], "started_unix_ms": NOW - 86_405_000.0,
            "listen": "127.0.0.1:8080", "keys_required": false,
        }))
        .unwrap(),
        metrics: Some(String::new()),
        clock: Some(Offset {
            ms: -200.0,
            error_ms: 501.0,
        }),
        now_unix_ms: NOW,
        stream: Some(Ok(Stream {
            pieces: 32,
            moments: 31,
            spread_ms: 640.0,
            took_ms: 760.0,
            named: None,
        })),
        ..Facts::default()
    }
}

/// Returns the findings other than plain `ok`, as `check status` or `check note`.
fn found(facts: &Facts) -> Vec<String> {
    let findings = diagnose(facts).findings;
    let other = findings
        .iter()
        .filter(|finding| finding.status != Status::Ok || finding.is_note());
    let line = |finding: &Finding| {
        let status = if finding.is_note() {
            "note".to_owned()
        } else {
            format!("{:?}", finding.status).to_lowercase()
        };
        let worker = finding
            .worker
            .as_ref()
            .map_or(String::new(), |worker| format!("{worker} "));
        format!("{worker}{} {status}", finding.check)
    };
    other.map(line).collect()
}

#[test]
fn a_healthy_fleet_has_no_findings() {
    assert_eq!(found(&healthy()), [""; 0]);
    let report = diagnose(&healthy());
    assert!(report.is_good(true));
    assert_eq!(report.findings.len(), 10 * 2 + 9);
}

#[test]
fn each_broken_fleet_has_its_one_finding_with_an_action() {
    for (name, breaks, expected) in BROKEN {
        let mut facts = healthy();
        breaks(&mut facts);
        assert_eq!(found(&facts), [*expected], "{name}");
        let report = diagnose(&facts);
        assert_eq!(report.is_good(false), !expected.ends_with("problem"), "{name}");
        assert_eq!(
            report.is_good(true),
            !expected.ends_with("problem") && !expected.ends_with("warning"),
            "{name}"
        );
        let without_action = |finding: &&Finding| finding.status != Status::Ok && finding.action.is_none();
        assert!(
            !report.findings.iter().any(|finding| without_action(&finding)),
            "{name}"
        );
    }
}

#[test]
fn without_reports_the_times_of_both_prompts_decide() {
    for (times, expected) in [
        ([120.0, 121.0], Status::Problem),
        ([120.0, 40.0], Status::Ok),
        ([120.0, 90.0], Status::Unknown),
        ([12.0, 12.0], Status::Unknown),
    ] {
        let mut facts = healthy();
        one(&mut facts).direct.caches_prefixes = None;
        one(&mut facts).cached_tokens_reported = Some(false);
        for (prompt, took_ms) in prompts(&mut facts).iter_mut().zip(times) {
            (prompt.cached_tokens, prompt.took_ms) = (None, took_ms);
        }
        let report = diagnose(&facts);
        let of = |finding: &&Finding| {
            finding.check == "prefix caching" && finding.worker.as_deref() == Some("gpu-1")
        };
        assert_eq!(
            report.findings.iter().find(of).unwrap().status,
            expected,
            "{times:?}"
        );
    }
}

#[track_caller]
fn of_gpu_1(facts: &Facts, check: &str) -> Finding {
    let mut findings = diagnose(facts).findings.into_iter();
    findings
        .find(|finding| {
            finding.check == check && finding.worker.as_deref().is_none_or(|name| name == "gpu-1")
        })
        .unwrap()
}

#[test]
fn answers_to_turns_outweigh_the_prompts() {
    let mut facts = healthy();
    prompts(&mut facts)[1].cached_tokens = Some(0);
    assert_eq!(of_gpu_1(&facts, "prefix caching").status, Status::Problem);
    for turn in &mut facts.turns {
        turn.reported_cached = Some(if turn.worker == "gpu-1" {
            turn.prompt_tokens() / 4
        } else {
            0
        });
    }
    let found = of_gpu_1(&facts, "prefix caching");
    assert_eq!(
        (found.status, found.found.as_str()),
        (Status::Ok, "50 turns found 25 % of their prompts in the cache")
    );
}

#[test]
fn a_busy_worker_is_not_accused_by_its_prompts() {
    let mut facts = healthy();
    prompts(&mut facts)[1].cached_tokens = Some(0);
    one(&mut facts).direct.caches_prefixes = None;
    one(&mut facts).wait_ms = 1_400.0;
    let found = of_gpu_1(&facts, "prefix caching");
    assert_eq!(found.status, Status::Unknown, "{}", found.found);
}

#[test]
fn waits_beyond_the_objective_are_a_problem_once_most_turns_were_late() {
    let mut facts = healthy();
    one(&mut facts).wait_ms = 52_000.0;
    assert_eq!(of_gpu_1(&facts, "objective").status, Status::Warning);
    facts.turns.iter_mut().for_each(|turn| turn.is_late = true);
    let found = of_gpu_1(&facts, "objective");
    assert_eq!(
        (found.status, found.found.as_str()),
        (
            Status::Problem,
            "50 of its last 50 turns were late, and 52000 ms of wait come before a new turn, more than the objective \
             of 400 ms"
        )
    );
    facts.turns.clear();
    assert_eq!(
        of_gpu_1(&facts, "objective").status,
        Status::Unknown,
        "no objective is known"
    );
    facts.objective_ms = Some(400.0);
    assert_eq!(of_gpu_1(&facts, "objective").status, Status::Warning);
}

#[test]
fn what_the_clients_url_refuses_is_not_blamed_on_streams() {
    let mut facts = healthy();
    facts.stream = Some(Err(StreamError::Unserved(http::StatusCode::SERVICE_UNAVAILABLE)));
    assert_eq!(found(&facts), ["clients problem", "streams unknown"]);
    facts.stream = Some(Err(StreamError::Unserved(http::StatusCode::UNAUTHORIZED)));
    assert_eq!(found(&facts), ["clients unknown", "streams unknown"]);
    facts.stream = None;
    assert_eq!(found(&facts), ["clients unknown", "streams unknown"]);
}

#[test]
fn what_the_admin_port_does_not_answer_is_named() {
    let mut facts = healthy();
    facts.unread = vec![("/admin/v1/slo", "no answer within 10 s".to_owned())];
    assert_eq!(found(&facts), ["admin problem"]);
    let found = of_gpu_1(&facts, "admin").found;
    assert!(found.ends_with("/admin/v1/slo: no answer within 10 s"), "{found}");
}

#[test]
fn control_characters_of_names_and_errors_are_escaped_in_the_report() {
    let mut facts = healthy();
    let worker = one(&mut facts);
    worker.name = "gpu\x1b]0;x\x07\n\u{9b}2K".to_owned();
    worker.state = "unwell".to_owned();
    worker.last_error = Some("\x1b[31m\u{202e}refused".to_owned());
    let text = diagnose(&facts).text(false);
    assert!(
        !text.contains(|letter| letter != '\n' && policy::text::acts_on_terminals(letter)),
        "{text:?}"
    );
    assert!(text.contains(r"\u001b[31m\u202erefused"), "{text}");
}

#[test]
fn a_dead_worker_is_one_problem_and_its_error_is_shown() {
    let mut facts = healthy();
    let worker = one(&mut facts);
    worker.state = "unwell".to_owned();
    (
        worker.events_live,
        worker.foreign_requests,
        worker.cached_tokens_reported,
    ) = (false, None, Some(false));
    (worker.last_error, worker.since_unix_ms) =
        (Some("connection refused".to_owned()), Some(NOW - 180_000.0));
    worker.direct = Direct {
        unreachable: Some("Connection refused (os error 111)".to_owned()),
        ..Direct::default()
    };
    let report = diagnose(&facts);
    let problems: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.status > Status::Unknown)
        .collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(
        problems[0].found,
        "its probes have failed for 3 min: connection refused"
    );
}

#[test]
fn a_new_fleet_says_what_is_missing() {
    let mut facts = healthy();
    facts.turns.clear();
    facts.configuration.started_unix_ms = Some(NOW - 20_000.0);
    for worker in &mut facts.workers {
        (worker.cost_source, worker.cost_answers) = (Some("default".to_owned()), Some(0));
        worker.ready_since_unix_ms = Some(NOW - 18_000.0);
    }
    let expected = [
        "gpu-0 cost warning",
        "gpu-1 cost warning",
        "gpu-0 objective unknown",
        "gpu-1 objective unknown",
    ];
    assert_eq!(found(&facts), expected);
}

#[test]
fn a_router_without_workers_is_a_problem() {
    let mut facts = healthy();
    facts.workers.clear();
    assert_eq!(found(&facts), ["workers problem"]);
}

#[test]
fn an_older_router_and_unreachable_workers_are_unknown_not_wrong() {
    let mut facts = healthy();
    for worker in &mut facts.workers {
        worker.direct = Direct {
            unreachable: Some("no answer in time".to_owned()),
            ..Direct::default()
        };
        (worker.capacity_source, worker.cost_source, worker.cost_answers) = (None, None, None);
        (
            worker.events_source,
            worker.cached_tokens_reported,
            worker.foreign_requests,
        ) = (None, None, None);
    }
    facts.configuration = facts::ConfigurationFacts::default();
    assert!(diagnose(&facts).is_good(true), "{:?}", found(&facts));
}

#[test]
fn the_report_fits_into_100_columns_and_is_one_screen() {
    let mut facts = healthy();
    for (_, breaks, _) in BROKEN {
        breaks(&mut facts);
    }
    facts.workers[0].name = "a-worker-with-a-long-name.in-a-namespace.svc".to_owned();
    let text = diagnose(&facts).text(false);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(text.lines().count() < 70, "{text}");
    assert!(!text.contains('\x1b') && diagnose(&facts).text(true).contains("\x1b[31m✗"));
}

#[test]
fn the_report_is_a_table_and_then_what_to_do() {
    let mut facts = healthy();
    facts
        .workers
        .iter_mut()
        .for_each(|worker| worker.dialect = "none".to_owned());
    facts.workers[1].foreign_requests = Some(3);
    let expected = "\
127.0.0.1:9090: 2 workers, 1 problem, 2 warnings

worker           health caching reports capacity cost objective events hints clock shared
gpu-0            ✓      ✓       ✓       ✓        ✓    ✓         ✓      !     ✓     ✓
gpu-1            ✓      ✓       ✓       ✓        ✓    ✓         ✓      !     ✓     ✗
router           ✓ admin  ✓ workers  ✓ configuration  ✓ replicas  ✓ clients
                 ✓ streams  ✓ access  ✓ hits  ✓ overload

✗ sharing (gpu-1): 3 requests at the worker did not come through this router (2 did).
  → if another tailroute uses the worker, set fleet.nats on both (docs/scaling.md); otherwise send
    all clients through the router

! hints (gpu-0, gpu-1): it takes no hints about what to evict first.
  → pip install ./deploy/engines/vllm, and start vLLM with VLLM_PLUGINS=tailroute (docs/engines.md)";
    assert_eq!(diagnose(&facts).text(false), expected);
}

#[test]
fn a_large_fleet_shows_only_workers_with_findings() {
    let mut facts = healthy();
    facts.workers = (0..60).map(|at| worker(&format!("gpu-{at}"))).collect();
    facts.workers[40].breaker = "open".to_owned();
    let text = diagnose(&facts).text(false);
    assert!(
        text.contains("\ngpu-40 ")
            && !text.contains("\ngpu-41 ")
            && text.contains("\n59 workers not shown\n"),
        "{text}"
    );
}

#[test]
fn the_latest_reading_of_a_clock_counts() {
    let offset = |ms| Some(Offset { ms, error_ms: 501.0 });
    let mut direct = Direct::default();
    for (reading, expected) in [
        (None, None),
        (offset(-2_600.0), offset(-2_600.0)),
        (offset(-300.0), offset(-300.0)),
        (offset(-900.0), offset(-300.0)),
        (None, offset(-300.0)),
    ] {
        direct.see_clock(reading);
        assert_eq!(direct.clock, expected);
    }
}
