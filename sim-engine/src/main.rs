//! The `sim-engine` binary: one simulated engine on a port, until interrupted.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgAction, Parser};
use policy::cache::Order as Eviction;
use policy::cost::PrefillCost;
use sim_engine::{
    CachePolicy, ConfigError, Dialect, Engine, EngineConfig, EventStyle, Jitter, KvEventsConfig, Order,
    StartError,
};

const AFTER_HELP: &str = "\
Example: an engine with room for 64k tokens whose hour passes in a minute, publishing cache events
  sim-engine --listen 127.0.0.1:8101 --capacity-blocks 4096 --time-scale 60 --kv-events tcp://127.0.0.1:0
  curl -s 127.0.0.1:8101/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'
  curl -s 127.0.0.1:8101/v1/messages -d '{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'
  curl -s 127.0.0.1:8101/v1/responses -d '{\"input\":\"Hello\"}'
  curl -s -X PUT 127.0.0.1:8101/sim/fault -d '{\"slow\":3}'     # and -X DELETE heals

TTFT = queue + beta + alpha·u + gamma·u·(h + u/2), u uncached and h cached prompt tokens; a decode step takes
tpot + tpot-batch × running sequences. All times are virtual: divided by --time-scale they pass on the wall.";

/// A simulated LLM inference engine: OpenAI's and Anthropic's APIs as vLLM serves them, a real prefix cache, no model.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Args {
    /// Address to listen on; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:8100")]
    listen: SocketAddr,
    /// The one model served.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Tokens per cache block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Size of the key-value cache, in blocks.
    #[arg(long, default_value_t = 8192)]
    capacity_blocks: u64,
    /// Size of the host-memory tier for evicted blocks, in blocks.
    #[arg(long, default_value_t = 0)]
    host_blocks: u64,
    /// Virtual milliseconds to load a token from host memory.
    #[arg(long, default_value_t = 0.01)]
    host_ms: f64,
    /// Eviction policy after the blocks that hints mark: lru, lfu, slru, fifo, mru, filo; or t-lru.
    #[arg(long, default_value = "lru", value_parser = ["lru", "lfu", "slru", "fifo", "mru", "filo", "t-lru"])]
    cache_policy: String,
    /// ξ of t-lru: uncached tokens that fit in the objective.
    #[arg(long, default_value_t = 2048)]
    xi_tokens: u64,
    /// Q̂ of t-lru: tokens that the next prompt is expected to add.
    #[arg(long, default_value_t = 256)]
    next_prompt_tokens: u64,
    /// α: virtual milliseconds per uncached prompt token.
    #[arg(long, default_value_t = 0.1)]
    alpha_ms: f64,
    /// β: virtual milliseconds that every prompt costs.
    #[arg(long, default_value_t = 20.0)]
    beta_ms: f64,
    /// γ: virtual milliseconds per (uncached token × context token).
    #[arg(long, default_value_t = 0.0)]
    gamma_ms: f64,
    /// Standard deviation of a prefill's time, as a share of it.
    #[arg(long, default_value_t = 0.0)]
    jitter: f64,
    /// Share of prefills that take 2 to 10 times as long.
    #[arg(long, default_value_t = 0.0)]
    stalls: f64,
    /// Seed of the prefills' random deviations.
    #[arg(long, default_value_t = 0)]
    jitter_seed: u64,
    /// Virtual milliseconds of a decode step.
    #[arg(long, default_value_t = 20.0)]
    tpot_ms: f64,
    /// Virtual milliseconds that each running sequence adds to a decode step.
    #[arg(long, default_value_t = 0.2)]
    tpot_batch_ms: f64,
    /// Share by which each running sequence lengthens a prefill.
    #[arg(long, default_value_t = 0.0)]
    decode_drag: f64,
    /// Virtual milliseconds per wall millisecond.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Answer at once, or at the pace of PUT /sim/pace, and cache nothing: for measuring a proxy in front.
    #[arg(long)]
    fast: bool,
    /// The order of the waiting queue.
    #[arg(long, value_enum, default_value_t = Order::Fifo)]
    order: Order,
    /// Longest waiting queue; further requests get a 503.
    #[arg(long, default_value_t = 4096)]
    max_queued: usize,
    /// Data-parallel ranks, each with its own queue, cache and events.
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// Maximum number of sequences that decode at the same time.
    #[arg(long, default_value_t = 256)]
    max_running: usize,
    /// Maximum number of tokens of prompt and reply together.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: u64,
    /// Longest request body; longer ones get a 413.
    #[arg(long, default_value_t = 32 << 20)]
    max_body_bytes: usize,
    /// Tokens of a reply without a limit in the request, or at /v1/messages with a higher one.
    #[arg(long, default_value_t = 64)]
    default_output_tokens: u32,
    /// Replies contain two-, three- and four-byte characters.
    #[arg(long)]
    multibyte: bool,
    /// Report cached tokens in `usage`.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    cached_tokens_report: bool,
    /// Report the cache size in `/metrics` and `/v1/tailroute`.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    tells_capacity: bool,
    /// Add `metrics` to chat and plain completions, as vLLM's --enable-per-request-metrics.
    #[arg(long)]
    per_request_metrics: bool,
    /// Reject unknown body fields with 400.
    #[arg(long)]
    strict: bool,
    /// Dialect of cache hints.
    #[arg(long, value_enum, default_value_t = Dialect::Tailroute)]
    dialect: Dialect,
    /// Publish cache events on this ZMQ endpoint, such as tcp://127.0.0.1:5557 (port 0: any).
    #[arg(long, value_name = "ENDPOINT")]
    kv_events: Option<String>,
    /// Engine whose cache events are imitated.
    #[arg(long, value_enum, default_value_t = EventStyle::Vllm)]
    kv_style: EventStyle,
    /// ZMQ endpoint for replays of missed cache events.
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "tcp://127.0.0.1:0",
        requires = "kv_events"
    )]
    kv_replay: String,
    /// Batches of cache events kept for replay.
    #[arg(long, default_value_t = 10_000)]
    kv_buffer: usize,
    /// Keep the latest requests and show the newest in /sim/stats.
    #[arg(long)]
    capture: bool,
    /// Print the addresses as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn config(self) -> EngineConfig {
        let (replay_endpoint, buffer) = (self.kv_replay, self.kv_buffer);
        EngineConfig {
            listen: self.listen,
            model: self.model,
            block_size: self.block_size,
            capacity_blocks: self.capacity_blocks,
            cache_policy: Eviction::named(&self.cache_policy).map_or(
                CachePolicy::TLru {
                    xi_tokens: self.xi_tokens,
                    next_prompt_tokens: self.next_prompt_tokens,
                },
                CachePolicy::Plain,
            ),
            prefill: PrefillCost {
                alpha_ms_per_token: self.alpha_ms,
                beta_ms: self.beta_ms,
                gamma_ms_per_token2: self.gamma_ms,
                floor_ms: 0.0,
            },
            jitter: Jitter {
                share: self.jitter,
                stalls: self.stalls,
                seed: self.jitter_seed,
            },
            tpot_ms: self.tpot_ms,
            tpot_batch_ms: self.tpot_batch_ms,
            decode_drag: self.decode_drag,
            host_blocks: self.host_blocks,
            host_ms_per_token: self.host_ms,
            time_scale: self.time_scale,
            fast: self.fast,
            order: self.order,
            max_queued: self.max_queued,
            ranks: self.ranks,
            max_running: self.max_running,
            max_model_len: self.max_model_len,
            max_body_bytes: self.max_body_bytes,
            default_output_tokens: self.default_output_tokens,
            multibyte: self.multibyte,
            cached_tokens_report: self.cached_tokens_report,
            tells_capacity: self.tells_capacity,
            per_request_metrics: self.per_request_metrics,
            strict: self.strict,
            dialect: self.dialect,
            kv_events: self.kv_events.map(|endpoint| KvEventsConfig {
                endpoint,
                replay_endpoint,
                buffer,
                style: self.kv_style,
                ..KvEventsConfig::default()
            }),
            capture: self.capture,
            ..EngineConfig::default()
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let usage = matches!(error.downcast_ref(), Some(StartError::Config(ConfigError { .. })));
            tracing::error!("{error:#}");
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

#[tokio::main]
async fn run(args: Args) -> anyhow::Result<()> {
    let json = args.json;
    let engine = Engine::start(args.config()).await?;
    announce(&engine, json).context("cannot write to standard output")?;
    tokio::signal::ctrl_c()
        .await
        .context("cannot wait for an interrupt")?;
    engine.shutdown().await;
    Ok(())
}

/// Prints the address in one line, so that a script can read it.
fn announce(engine: &Engine, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let line = serde_json::json!({ "url": engine.url(), "kv_events": engine.kv_source() });
        writeln!(out, "{line}")?;
    } else {
        write!(out, "sim-engine listens on {}", engine.url())?;
        if let Some(source) = engine.kv_source() {
            write!(
                out,
                ", cache events on {} (replay {})",
                source.endpoint, source.replay_endpoint
            )?;
        }
        writeln!(out)?;
    }
    out.flush()
}
