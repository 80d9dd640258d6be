//! Fleets that are broken in one way.

use super::*;

/// A fleet that is broken in one way: its name, how it is broken, and the one finding.
pub(super) type Broken = (&'static str, fn(&mut Facts), &'static str);

pub(super) const BROKEN: &[Broken] = &[
    (
        "prefix caching is off",
        |facts| prompts(facts)[1].cached_tokens = Some(0),
        "gpu-1 prefix caching problem",
    ),
    (
        "the engine's settings say so",
        |facts| one(facts).direct.caches_prefixes = Some(false),
        "gpu-1 prefix caching problem",
    ),
    (
        "a figure of zero is omitted",
        |facts| prompts(facts)[1].cached_tokens = None,
        "gpu-1 prefix caching problem",
    ),
    (
        "cached tokens are not reported",
        |facts| {
            prompts(facts)
                .iter_mut()
                .for_each(|prompt| prompt.cached_tokens = None);
            one(facts).cached_tokens_reported = Some(false);
        },
        "gpu-1 cached tokens warning",
    ),
    (
        "nothing is cached, and a figure of zero is omitted",
        |facts| {
            prompts(facts)
                .iter_mut()
                .for_each(|prompt| prompt.cached_tokens = None);
            one(facts).cached_tokens_reported = Some(false);
            one(facts).direct.reports_cached_tokens = Some(true);
        },
        "gpu-1 prefix caching problem",
    ),
    (
        "no plugin",
        |facts| one(facts).dialect = "none".to_owned(),
        "gpu-1 hints warning",
    ),
    (
        "the capacity is assumed",
        |facts| one(facts).capacity_source = Some("assumed".to_owned()),
        "gpu-1 capacity warning",
    ),
    (
        "the configured capacity is wrong",
        |facts| {
            one(facts).capacity_source = Some("configured".to_owned());
            one(facts).capacity_tokens = 500_000;
        },
        "gpu-1 capacity problem",
    ),
    (
        "a worker has become slow",
        |facts| {
            let slow = json!({ "factor": 7.9, "against": "own past", "typical_prompt_ms": 237.0, "baseline_typical_prompt_ms": 30.0 });
            one(facts).slow = serde_json::from_value(slow).unwrap();
        },
        "gpu-1 cost warning",
    ),
    (
        "α is overridden",
        |facts| one(facts).alpha_set = Some(json!({})),
        "gpu-1 cost warning",
    ),
    (
        "a publisher is not reached",
        |facts| one(facts).events_live = false,
        "gpu-1 cache events problem",
    ),
    (
        "a configured publisher is silent",
        |facts| {
            one(facts).events_live = false;
            one(facts).events_source = Some("configured".to_owned());
        },
        "gpu-1 cache events problem",
    ),
    (
        "the events are empty",
        |facts| one(facts).events_stored = Some(0),
        "gpu-1 cache events warning",
    ),
    (
        "there are no events",
        |facts| {
            one(facts).events_live = false;
            one(facts).direct.names_publisher = Some(false);
        },
        "gpu-1 cache events note",
    ),
    (
        "a clock is ahead",
        |facts| {
            one(facts).direct.clock = Some(Offset {
                ms: 4_000.0,
                error_ms: 501.0,
            })
        },
        "gpu-1 clock warning",
    ),
    (
        "a worker was restarted",
        |facts| one(facts).direct.started_unix_ms = Some(NOW - 60_000.0),
        "gpu-1 health warning",
    ),
    (
        "a worker came back",
        |facts| one(facts).ready_since_unix_ms = Some(NOW - 60_000.0),
        "gpu-1 health warning",
    ),
    (
        "a breaker is open",
        |facts| one(facts).breaker = "open".to_owned(),
        "gpu-1 health problem",
    ),
    (
        "a worker is drained",
        |facts| one(facts).state = "drained".to_owned(),
        "gpu-1 health warning",
    ),
    (
        "the objective is too strict",
        |facts| one(facts).cost.alpha_ms_per_token = 2.0,
        "gpu-1 objective problem",
    ),
    (
        "a worker is overloaded",
        |facts| one(facts).wait_ms = 900.0,
        "gpu-1 objective warning",
    ),
    (
        "another router uses a worker",
        |facts| one(facts).foreign_requests = Some(3),
        "gpu-1 sharing problem",
    ),
    (
        "clients bypass the replicas",
        |facts| {
            one(facts).foreign_requests = Some(3);
            (facts.replicas.configured, facts.replicas.connected) = (true, true);
            facts.replicas.peers = vec![json!({})];
        },
        "gpu-1 sharing warning",
    ),
    (
        "NATS is away",
        |facts| facts.replicas.configured = true,
        "replicas problem",
    ),
    (
        "discovery fails",
        |facts| {
            let failure = Some(SourceFailure {
                what: "403: may not list pods".to_owned(),
            });
            facts.discovery = vec![SourceFacts {
                source: "kubernetes".to_owned(),
                of: "app=llm".to_owned(),
                failure,
                named: 2,
            }];
        },
        "workers warning",
    ),
    (
        "the configuration is refused",
        |facts| facts.configuration.refused = Some("t.toml:1:1".to_owned()),
        "configuration problem",
    ),
    (
        "a restart is needed",
        |facts| facts.configuration.needs_restart = vec!["server".to_owned()],
        "configuration warning",
    ),
    (
        "a proxy buffers streams",
        |facts| {
            let named = Some("nginx".to_owned());
            facts.stream = Some(Ok(Stream {
                pieces: 32,
                moments: 1,
                spread_ms: 0.0,
                took_ms: 760.0,
                named,
            }));
        },
        "streams problem",
    ),
    (
        "anyone may connect",
        |facts| facts.configuration.listen = Some("0.0.0.0:8080".to_owned()),
        "access note",
    ),
    (
        "caches lose what the router believes in them",
        |facts| facts.hits = hits([100_000, 80_000, 79_000, 40_000]),
        "hits warning",
    ),
    (
        "the holders of prompts are not chosen",
        |facts| facts.hits = hits([100_000, 80_000, 50_000, 49_000]),
        "hits warning",
    ),
    (
        "prompts hardly repeat",
        |facts| facts.hits = hits([100_000, 10_000, 10_000, 10_000]),
        "hits note",
    ),
    (
        "the fleet is overloaded",
        |facts| {
            facts.overload = Some(Overload {
                workers_ready: 2,
                workers_over: 2,
                wait_ms: 4_000.0,
                objective_ms: 400.0,
                late: 812,
                refused: 0,
            });
        },
        "overload problem",
    ),
    (
        "an older router has no account of hits",
        |facts| facts.hits = None,
        "hits unknown",
    ),
    (
        "the engine's settings switch the reports off",
        |facts| {
            one(facts).direct.prompts = None;
            one(facts).cached_tokens_reported = Some(false);
            one(facts).direct.reports_cached_tokens = Some(false);
        },
        "gpu-1 cached tokens warning",
    ),
];

pub(super) fn one(facts: &mut Facts) -> &mut WorkerFacts {
    &mut facts.workers[1]
}

pub(super) fn prompts(facts: &mut Facts) -> &mut [Prompt; 2] {
    one(facts).direct.prompts.as_mut().unwrap().as_mut().unwrap()
}
