//! The table of sglang-router (`python -m sglang_router.launch_router`) and SMG (`smg launch`), its successor.

use crate::draft::ConfigDraft;
use crate::family::{Defaults, PAIRS};
use crate::given::ParsedOption;
use crate::table::{OptionRow, rows};
use crate::workers;

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
const TENSORS: &str = "media are forwarded in the body unchanged";
const WEBRTC: &str = "WebRTC is not supported; WebSockets (/v1/realtime) are";
const RECOVERY: &str = "an unhealthy worker gets no requests and is probed until it recovers";
const CONTROL: &str = "engine control is not forwarded: call each engine itself";
const WASM: &str = "there are no plugins within the router";

pub(crate) const TABLE: &[OptionRow] = rows! {
    none One "--health-check-port" => ("/livez and /readyz are on admin.listen, which has a separate thread");

    none One "--encode-policy" => (PAIRS);
    none One "--least-load-kv-pressure-weight" "--least-load-default-throughput"
        "--least-load-mean-prefill-tokens" => (LEAST_LOAD);
    none One "--balance-token-usage-threshold" "--overload-token-usage-threshold" => (USAGE);
    none One "--bucket-adjust-interval-secs"
        => ("requests are not sorted by length; `tail` predicts the work of each");
    built_in One "--eviction-interval-secs" "--eviction-interval" => (TREE);
    number One "--block-size" => ("workers.block_size_tokens", 1.0);
    none One "--max-idle-secs" "--assignment-mode" "--redis-key-prefix" => (MANUAL);
    none One "--prefix-token-count" => ("prefix_hash hashes a beginning of fixed length");
    none One "--prefix-hash-load-factor" => ("prefix_hash has a fixed factor of load");
    none Nothing "--dp-aware" => ("set workers.ranks to the engine's number of data-parallel ranks");
    none Nothing "--routing-key-override"
        => ("X-SMG-Routing-Key is not read; X-Session-ID names a conversation");
    none Nothing "--dp-minimum-tokens-scheduler"
        => ("set workers.ranks: each rank is then a worker with its own predicted wait");
    none One "--load-monitor-interval"
        => ("requests in flight are counted; health.queue_interval_ms reads the engines' own queues");
    none Nothing "--engine-metrics"
        => ("the admin port has no copy of the engines' metrics; scrape the engines");

    none Nothing "--pd-disaggregation" "--epd-disaggregation" => (PAIRS);
    none Any "--encode" "--encode-selector" => (PAIRS);
    none One "--worker-startup-delay"
        => ("the router starts at once; a worker joins when its probes succeed");
    none One "--multimodal-tensor-transport" "--multimodal-shm-min-bytes" => (TENSORS);

    by Nothing "--log-json" => ("log.format", log_json);
    none Any "--router-selector" => (MESH);
    none One "--model-id-from" => ("the annotation worker.tailroute.io/models of a pod names its models");
    none Any "--model-alias" => ("models have no aliases; start the engine with several --served-model-name");
    none Any "--prometheus-duration-buckets" => ("buckets are fixed");

    none Any "--storage-context-headers" => (STORES);
    none Nothing "--trust-tenant-header" => (TENANTS);
    none One "--tenant-header-name" => (TENANTS);
    number One "--shutdown-grace-period-secs" => ("limits.drain_timeout_s", 1.0);
    none Nothing "--priority-scheduler-enabled" => (SCHEDULER);
    none One "--priority-scheduler-default-max-class" "--priority-scheduler-config"
        "--priority-scheduler-tenant-metric-top-n" => (SCHEDULER);
    none Nothing "--tenant-rate-limit-enabled" => (LIMITS_OF_TENANTS);
    none One "--tenant-rate-limit-config" => (LIMITS_OF_TENANTS);

    none Nothing "--disable-health-check"
        => ("workers are always probed; health.unhealthy_after says how many failures take one out");
    none Nothing "--remove-unhealthy-workers" "--no-remove-unhealthy-workers" "--worker-auto-recovery"
        "--no-worker-auto-recovery" => (RECOVERY);
    none Nothing "--enable-rl" => (CONTROL);
    none One "--rl-control-timeout-secs" => (CONTROL);
    none One "--drain-settle-secs"
        => ("a worker that is removed finishes its streams first, however long they take");

    built_in One "--model-path" "--model" "--tokenizer-path" "--chat-template" => (NO_TOKENIZER);
    built_in Nothing "--disable-tokenizer-autoload" "--tokenizer-cache-enable-l0" => (NO_TOKENIZER);
    built_in One "--tokenizer-cache-l0-max-entries" => (NO_TOKENIZER);
    built_in Nothing "--tokenizer-cache-enable-l1" => (NO_TOKENIZER);
    built_in One "--tokenizer-cache-l1-max-memory" => (NO_TOKENIZER);
    none One "--reasoning-parser" "--tool-call-parser" => (PARSERS);
    none One "--mcp-config-path" => (MCP);

    none Nothing "--enable-wasm" => (WASM);
    none One "--storage-hook-wasm-path" => (WASM);
    none One "--schema-config" "--oracle-wallet-path" "--oracle-tns-alias" => (STORES);
    secret One "--oracle-connect-descriptor" "--oracle-dsn" => (STORES);
    none One "--oracle-username" "--oracle-user" => (STORES);
    secret One "--oracle-password" => (STORES);
    none Nothing "--oracle-external-auth" => (STORES);
    none One "--oracle-pool-min" "--oracle-pool-max" "--oracle-pool-timeout-secs" => (STORES);
    secret One "--postgres-db-url" => (STORES);
    none One "--postgres-pool-max" "--postgres-pool-max-size" => (STORES);
    secret One "--redis-url" => (STORES);
    none One "--redis-pool-max" "--redis-pool-max-size" "--redis-retention-days" => (STORES);

    text One "--client-cert-path" => ("tls.workers.cert_file");
    text One "--client-key-path" => ("tls.workers.key_file");
    by Any "--ca-cert-paths" => ("tls.workers.ca_file", roots);
    text One "--tls-cert-path" => ("tls.cert_file");
    text One "--tls-key-path" => ("tls.key_file");

    secret_by One "--api-key" => ("keys.sha256", api_key);
    secret_by One "--tenant-api-key" => ("keys.sha256", tenant_key);
    secret Any "--control-plane-api-keys" => (TOKENS);
    none Nothing "--control-plane-audit-enabled"
        => ("every change is in the audit log; admin.audit_file also writes it to a file");
    none Nothing "--disable-audit-logging"
        => ("the audit log is always kept, in memory unless admin.audit_file is set");
    none One "--jwt-issuer" "--jwt-audience" "--jwt-jwks-uri" "--jwt-role-claim" => (JWT);
    none Any "--jwt-role-mapping" => (JWT);

    none Nothing "--enable-mesh" => (MESH);
    none One "--mesh-server-name" "--mesh-host" "--mesh-advertise-host" "--mesh-port" => (MESH);
    none Any "--mesh-peer-urls" => (MESH);
    none One "--webrtc-bind-addr" "--webrtc-stun-server" => (WEBRTC);
    none One "--runtime-worker-threads" => ("one thread per processor that the container may use");
    none Nothing "--router-disable-arg-fallback" => ("only concerns the launcher's own flags");
};

fn log_json(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("log.format", "json", given.shown());
    Ok(())
}

fn roots(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
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

/// Adds the key that clients send, and notes that the source also sends it to the workers.
fn api_key(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    workers::add_key(draft, "api-key", given.one()?, &given.name)?;
    workers::note_key_of_workers(draft, &given.shown());
    Ok(())
}

fn tenant_key(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let (tenant, key) = given.one()?.split_once(':').ok_or("expected TENANT:KEY")?;
    workers::add_key(draft, tenant, key, &given.name)
}
