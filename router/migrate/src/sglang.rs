//! sglang-router (`python -m sglang_router.launch_router`) and SMG (`smg launch`), its successor.

use crate::draft::Draft;
use crate::family::{Defaults, PAIRS};
use crate::given::Given;
use crate::table::{Row, Takes, built_in, by, none, number, text};
use crate::workers;

use Takes::{Any, Nothing, One};

pub(crate) const DEFAULTS: Defaults = Defaults {
    host: "0.0.0.0",
    prometheus_host: "0.0.0.0",
};

const TREE: &str = "the index evicts by memory (index.max_bytes), not by a timer";
const NO_TOKENIZER: &str = "bodies are forwarded as they came; no tokenizer or chat template is needed";
const PARSERS: &str = "answers are parsed by the engine: give it its own flag of this name";
const STORES: &str = "stored responses and conversations stay with the engines";
const MCP: &str = "tools are called by clients, not by the router";
const TOKENS: &str = "administrators have tokens with roles: `tailroute key new --role ROLE NAME >> tokens.toml` and admin.tokens_file";
const JWT: &str = "JWTs are not read; administrators have tokens (admin.tokens_file)";
const MESH: &str = "replicas of the router tell each other over NATS: set fleet.nats";
const LEAST_LOAD: &str = "`tail` predicts the work of each request from what it learns of each worker";
const MANUAL: &str =
    "conversations are bound by X-Session-ID or by their prompts; no table of routing keys is kept";
const USAGE: &str = "load is predicted work and requests in flight, not the share of the cache in use";
const TENANTS: &str = "tenants come from keys ([[keys]]), not from a header";
const SCHEDULER: &str = "classes come from keys: set priority and weight in [[keys]]";
const LIMITS_OF_TENANTS: &str = "rates belong to keys: set requests_per_s and tokens_per_min in [[keys]]";
const TENSORS: &str = "media are forwarded in the body as they came";
const WEBRTC: &str = "WebRTC is not supported; WebSockets (/v1/realtime) are";
const WASM: &str = "there are no plugins within the router";

pub(crate) const TABLE: &[Row] = &[
    none(
        "--health-check-port",
        One,
        "/livez and /readyz are on admin.listen, which has a separate thread",
    ),
    // routing
    none("--encode-policy", One, PAIRS),
    none("--least-load-kv-pressure-weight", One, LEAST_LOAD),
    none("--least-load-default-throughput", One, LEAST_LOAD),
    none("--least-load-mean-prefill-tokens", One, LEAST_LOAD),
    none("--balance-token-usage-threshold", One, USAGE),
    none("--overload-token-usage-threshold", One, USAGE),
    none(
        "--bucket-adjust-interval-secs",
        One,
        "requests are not sorted by length; `tail` predicts the work of each",
    ),
    built_in("--eviction-interval-secs", One, TREE),
    built_in("--eviction-interval", One, TREE),
    number("--block-size", "workers.block_size_tokens", 1.0),
    none("--max-idle-secs", One, MANUAL),
    none("--assignment-mode", One, MANUAL),
    none("--redis-key-prefix", One, MANUAL),
    none(
        "--prefix-token-count",
        One,
        "prefix_hash hashes a beginning of fixed length",
    ),
    none(
        "--prefix-hash-load-factor",
        One,
        "prefix_hash has a fixed factor of load",
    ),
    none(
        "--dp-aware",
        Nothing,
        "set workers.ranks to the engine's number of data-parallel ranks",
    ),
    none(
        "--routing-key-override",
        Nothing,
        "X-SMG-Routing-Key is not read; X-Session-ID names a conversation",
    ),
    none(
        "--dp-minimum-tokens-scheduler",
        Nothing,
        "set workers.ranks: each rank is then a worker with its own predicted wait",
    ),
    none(
        "--load-monitor-interval",
        One,
        "requests in flight are counted; health.queue_interval_ms reads the engines' own queues",
    ),
    none(
        "--engine-metrics",
        Nothing,
        "the admin port has no copy of the engines' metrics; scrape the engines",
    ),
    // prefill, decode, encode
    none("--pd-disaggregation", Nothing, PAIRS),
    none("--epd-disaggregation", Nothing, PAIRS),
    none("--encode", Any, PAIRS),
    none("--encode-selector", Any, PAIRS),
    none(
        "--worker-startup-delay",
        One,
        "the router starts at once; a worker joins when its probes succeed",
    ),
    none("--multimodal-tensor-transport", One, TENSORS),
    none("--multimodal-shm-min-bytes", One, TENSORS),
    // logs, discovery, metrics
    by("--log-json", Nothing, "log.format", log_json),
    none("--router-selector", Any, MESH),
    none(
        "--model-id-from",
        One,
        "the annotation worker.tailroute.io/models of a pod names its models",
    ),
    none(
        "--model-alias",
        Any,
        "models have no aliases; start the engine with several --served-model-name",
    ),
    none("--prometheus-duration-buckets", Any, "buckets are fixed"),
    // requests
    none("--storage-context-headers", Any, STORES),
    none("--trust-tenant-header", Nothing, TENANTS),
    none("--tenant-header-name", One, TENANTS),
    number("--shutdown-grace-period-secs", "limits.drain_timeout_s", 1.0),
    none("--priority-scheduler-enabled", Nothing, SCHEDULER),
    none("--priority-scheduler-default-max-class", One, SCHEDULER),
    none("--priority-scheduler-config", One, SCHEDULER),
    none("--priority-scheduler-tenant-metric-top-n", One, SCHEDULER),
    none("--tenant-rate-limit-enabled", Nothing, LIMITS_OF_TENANTS),
    none("--tenant-rate-limit-config", One, LIMITS_OF_TENANTS),
    // health
    none(
        "--disable-health-check",
        Nothing,
        "workers are always probed; health.unhealthy_after says how many failures take one out",
    ),
    none(
        "--remove-unhealthy-workers",
        Nothing,
        "an unhealthy worker gets no requests and is probed until it recovers",
    ),
    none(
        "--drain-settle-secs",
        One,
        "a worker that is removed finishes its streams first, however long they take",
    ),
    // tokenizer, parsers
    built_in("--model-path", One, NO_TOKENIZER),
    built_in("--model", One, NO_TOKENIZER),
    built_in("--tokenizer-path", One, NO_TOKENIZER),
    built_in("--chat-template", One, NO_TOKENIZER),
    built_in("--disable-tokenizer-autoload", Nothing, NO_TOKENIZER),
    built_in("--tokenizer-cache-enable-l0", Nothing, NO_TOKENIZER),
    built_in("--tokenizer-cache-l0-max-entries", One, NO_TOKENIZER),
    built_in("--tokenizer-cache-enable-l1", Nothing, NO_TOKENIZER),
    built_in("--tokenizer-cache-l1-max-memory", One, NO_TOKENIZER),
    none("--reasoning-parser", One, PARSERS),
    none("--tool-call-parser", One, PARSERS),
    none("--mcp-config-path", One, MCP),
    // stores, plugins
    none("--enable-wasm", Nothing, WASM),
    none("--storage-hook-wasm-path", One, WASM),
    none("--schema-config", One, STORES),
    none("--oracle-wallet-path", One, STORES),
    none("--oracle-tns-alias", One, STORES),
    none("--oracle-connect-descriptor", One, STORES).secret(),
    none("--oracle-dsn", One, STORES).secret(),
    none("--oracle-username", One, STORES),
    none("--oracle-user", One, STORES),
    none("--oracle-password", One, STORES).secret(),
    none("--oracle-external-auth", Nothing, STORES),
    none("--oracle-pool-min", One, STORES),
    none("--oracle-pool-max", One, STORES),
    none("--oracle-pool-timeout-secs", One, STORES),
    none("--postgres-db-url", One, STORES).secret(),
    none("--postgres-pool-max", One, STORES),
    none("--postgres-pool-max-size", One, STORES),
    none("--redis-url", One, STORES).secret(),
    none("--redis-pool-max", One, STORES),
    none("--redis-pool-max-size", One, STORES),
    none("--redis-retention-days", One, STORES),
    // TLS
    text("--client-cert-path", "tls.workers.cert_file"),
    text("--client-key-path", "tls.workers.key_file"),
    by("--ca-cert-paths", Any, "tls.workers.ca_file", roots),
    text("--tls-cert-path", "tls.cert_file"),
    text("--tls-key-path", "tls.key_file"),
    // authentication
    by("--api-key", One, "keys.sha256", api_key).secret(),
    by("--tenant-api-key", One, "keys.sha256", tenant_key).secret(),
    none("--control-plane-api-keys", Any, TOKENS).secret(),
    none(
        "--control-plane-audit-enabled",
        Nothing,
        "every change is in the audit log; admin.audit_file also writes it to a file",
    ),
    none(
        "--disable-audit-logging",
        Nothing,
        "the audit log is always kept, in memory unless admin.audit_file is set",
    ),
    none("--jwt-issuer", One, JWT),
    none("--jwt-audience", One, JWT),
    none("--jwt-jwks-uri", One, JWT),
    none("--jwt-role-claim", One, JWT),
    none("--jwt-role-mapping", Any, JWT),
    // replicas, runtime
    none("--enable-mesh", Nothing, MESH),
    none("--mesh-server-name", One, MESH),
    none("--mesh-host", One, MESH),
    none("--mesh-advertise-host", One, MESH),
    none("--mesh-port", One, MESH),
    none("--mesh-peer-urls", Any, MESH),
    none("--webrtc-bind-addr", One, WEBRTC),
    none("--webrtc-stun-server", One, WEBRTC),
    none(
        "--runtime-worker-threads",
        One,
        "one thread per processor that the container may use",
    ),
    none(
        "--router-disable-arg-fallback",
        Nothing,
        "only concerns the launcher's own flags",
    ),
];

fn log_json(draft: &mut Draft, given: &Given) -> Result<(), String> {
    draft.set("log.format", "json", given.shown());
    Ok(())
}

fn roots(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let Some(first) = given.values.first() else {
        return Ok(());
    };
    draft.set("tls.workers.ca_file", first.as_str(), given.shown());
    if given.values.len() > 1 {
        let why = "one file holds all roots: put these certificates into the file of tls.workers.ca_file";
        draft.note(given.shown(), why);
    }
    Ok(())
}

/// Clients send this key, and the router sends it to the workers.
fn api_key(draft: &mut Draft, given: &Given) -> Result<(), String> {
    workers::add_key(draft, "api-key", given.one()?, &given.name)?;
    workers::note_key_of_workers(draft, &given.shown());
    Ok(())
}

fn tenant_key(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let (tenant, key) = given.one()?.split_once(':').ok_or("expected TENANT:KEY")?;
    workers::add_key(draft, tenant, key, &given.name)
}
