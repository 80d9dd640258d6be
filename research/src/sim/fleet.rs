//! `tailroute-lab sim fleet`: a simulated fleet with queues and caches under the router's own code, without a network.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use simulator::fleet::late_binding::Deferral;
use simulator::fleet::{
    self, CacheRule, Decode, Fault, FaultKind, FleetConfig, FleetReport, Order, Pace, Routers, Sharing,
    Target, View, WorkerSpec, Workload,
};

use crate::cache::ranked_rules::cache_rule;
use policy::route::{PolicyName, Settings};
use policy::units::{Millis, Tokens};

use super::args::{Input, Output};
use simulator::trace::BLOCK_TOKENS;

/// Capacity per worker of the tree in SGLang's router: 2^26 characters.
const TREE_TOKENS: Tokens = Tokens(1 << 24);

/// Compare routing policies on a fleet: TTFT percentiles, hits, utilisation
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute-lab sim fleet --trace hot:1 --workers 4 --capacity-blocks 8000 --policies tail,cache_aware,least_ttft --load 0.8\n  \
    tailroute-lab sim fleet --trace conv.jsonl.gz --workers 4 --capacity-blocks 1000 --policies tail --cache lru,tail,to-belady --load 0.5 --json\n  \
    tailroute-lab sim fleet --trace gen:agentic:1 --workers 4 --capacity-blocks 500 --policies tail --cache lru,end-lru,belady --view exact --load 1\n  \
    tailroute-lab sim fleet --trace gen:agentic:1 --workers 4 --capacity-blocks 4000 --policies tail,cache_aware --load 2 --fault die:1@0.3,return:1@0.6")]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Number of workers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Blocks in each worker's cache; a list is assigned round-robin.
    #[arg(long, value_delimiter = ',', required = true)]
    capacity_blocks: Vec<u64>,
    /// Routing policies, comma-separated; an unknown name lists them all.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "round_robin,cache_aware,least_ttft,tail"
    )]
    policies: Vec<PolicyName>,
    /// Eviction policy of the workers: lru, tail (hints from the router), t-lru[:TOKENS] (with a fixed ξ),
    /// threshold-lru[:TOKENS], gdfs or workload-aware; with foresight end-lru, length-aware, belady or to-belady. A
    /// list runs each. Defaults to tail for `tail` and to lru for the others. See docs/cache-policies.md.
    #[arg(long, value_delimiter = ',', value_parser = cache_rule)]
    cache: Vec<CacheRule>,
    /// ξ: the time-to-first-token objective, in ms.
    #[arg(long, default_value = "1000", value_parser = simulator::args::positive)]
    xi_ms: f64,
    /// A class of conversations with another objective: its share of conversations and the objective in ms, as
    /// SHARE:MS.
    #[arg(long, value_name = "SHARE:MS", value_parser = own_objective)]
    strict: Option<(f64, Millis)>,
    /// Share of turns that must meet the objective.
    #[arg(long, default_value = "0.95", value_parser = simulator::args::positive)]
    share: f64,
    /// Expected tokens of the next prompt, before any are observed.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=simulator::trace::MAX_TOKENS_PER_FIELD))]
    next_prompt_tokens: u64,
    #[command(flatten)]
    pace: PaceArgs,
    /// α: ms per uncached token; a list is assigned round-robin.
    #[arg(long, value_delimiter = ',', default_value = "0.05", value_parser = simulator::args::positive)]
    alpha: Vec<f64>,
    /// β: fixed ms per turn.
    #[arg(long, default_value = "0", value_parser = simulator::args::non_negative)]
    beta: f64,
    /// γ: ms per uncached token and token of context.
    #[arg(long, default_value = "0", value_parser = simulator::args::non_negative)]
    gamma: f64,
    /// The router's knowledge of the caches: exact, mirror, tree[:TOKENS] or events[:DELAY_MS[:LOSS]]. Defaults to
    /// mirror, and for `cache_aware` and `cache_aware_smg` to the tree of the original routers, which does not follow
    /// evictions.
    #[arg(long)]
    view: Option<ViewArg>,
    /// Use the given costs without learning from responses.
    #[arg(long)]
    known_costs: bool,
    /// Order of the workers' queues: fifo, sjf (shortest first) or edf (earliest due time first).
    #[arg(long, value_enum, default_value_t = OrderArg::Fifo)]
    order: OrderArg,
    /// Routers in front of the workers, each turn going to a random one: COUNT:alone, or COUNT[:DELAY_MS[:LOSS]] if
    /// they share their decisions (default delay 5 ms, no loss). A list runs each.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = routers)]
    routers: Vec<Routers>,
    /// With `tail`: hold turns in the router while their worker has more than this many ms of prefill queued.
    #[arg(long, value_name = "MS", value_parser = simulator::args::non_negative)]
    hold_ms: Option<f64>,
    /// Decoding: ms per response token. 0 completes a response with its first token.
    #[arg(long, default_value = "0", value_parser = simulator::args::non_negative)]
    decode_ms: f64,
    /// Tokens per chunk of a chunked prefill. 0 computes a prompt in one piece.
    #[arg(long, default_value_t = 0)]
    chunk_tokens: u64,
    /// Decoding: ms that each running response adds to each chunk of a prefill.
    #[arg(long, default_value = "0", value_parser = simulator::args::non_negative)]
    interference_ms: f64,
    /// Faults, comma-separated: slow:WORKER:FACTOR@SHARE, die:WORKER@SHARE or return:WORKER@SHARE, at a share of the
    /// trace.
    #[arg(long, value_delimiter = ',')]
    fault: Vec<FaultArg>,
    /// Upper bound of κ.
    #[arg(long)]
    kappa_max: Option<f64>,
    /// Window over which ρ is measured, in seconds.
    #[arg(long, value_parser = simulator::args::positive)]
    utilisation_window_s: Option<f64>,
    /// Weight of κ's excess over 1.
    #[arg(long, value_parser = simulator::args::non_negative)]
    locality: Option<f64>,
    /// Tokens per block. Defaults to the trace's own, or 512 if it has none.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: Option<u32>,
    /// Seed of the arrival jitter.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum jitter either way, in seconds of the trace's clock.
    #[arg(long, default_value = "1.5", value_parser = simulator::args::non_negative)]
    jitter_s: f64,
    /// Report every turn, with `--json`.
    #[arg(long)]
    per_turn: bool,
    #[command(flatten)]
    output: Output,
}

/// The speed, given in one of two ways.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct PaceArgs {
    /// ρ: load relative to the capacity without caches.
    #[arg(long, value_parser = simulator::args::positive)]
    load: Option<f64>,
    /// Multiple of the trace's own speed.
    #[arg(long, value_parser = simulator::args::positive)]
    speed: Option<f64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OrderArg {
    Fifo,
    Sjf,
    Edf,
}

#[derive(Clone, Copy, Debug)]
struct ViewArg(View);

impl FromStr for ViewArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "exact, mirror, tree[:TOKENS] or events[:DELAY_MS[:LOSS]] expected".to_owned();
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers: Vec<f64> = parts
            .map(simulator::args::non_negative)
            .collect::<Result<_, _>>()
            .map_err(|_| refused())?;
        match (name, numbers.as_slice()) {
            ("exact", []) => Ok(Self(View::Exact)),
            ("mirror", []) => Ok(Self(View::Mirror)),
            ("tree", []) => Ok(Self(View::Tree(TREE_TOKENS))),
            ("tree", [tokens]) => Ok(Self(View::Tree(Tokens(*tokens as u64)))),
            ("events", rest) if rest.len() <= 2 && rest.get(1).is_none_or(|loss| *loss <= 1.0) => {
                Ok(Self(View::Events {
                    delay: Millis(rest.first().copied().unwrap_or(50.0)),
                    loss: rest.get(1).copied().unwrap_or(0.0),
                }))
            }
            _ => Err(refused()),
        }
    }
}

/// Upper bound on simulated routers, since each has an index of its own.
const MOST_ROUTERS: usize = 64;

fn routers(text: &str) -> Result<Routers, String> {
    let refused = || {
        format!(
            "`{text}`: COUNT:alone or COUNT[:DELAY_MS[:LOSS]] expected, COUNT from 1 to {MOST_ROUTERS}, LOSS up to 1"
        )
    };
    let (count, how) = text.split_once(':').unwrap_or((text, ""));
    let count = count.parse().map_err(|_| refused())?;
    if !(1..=MOST_ROUTERS).contains(&count) {
        return Err(refused());
    }
    if how == "alone" {
        return Ok(Routers { count, sharing: None });
    }
    let numbers: Vec<f64> = match how {
        "" => Vec::new(),
        how => how
            .split(':')
            .map(simulator::args::non_negative)
            .collect::<Result<_, _>>()
            .map_err(|_| refused())?,
    };
    let (delay, loss) = match numbers.as_slice() {
        [] => (5.0, 0.0),
        [delay] => (*delay, 0.0),
        [delay, loss] if *loss <= 1.0 => (*delay, *loss),
        _ => return Err(refused()),
    };
    let delay = Millis(delay);
    let sharing = (count > 1).then_some(Sharing { delay, loss });
    Ok(Routers { count, sharing })
}

fn own_objective(text: &str) -> Result<(f64, Millis), String> {
    let refused = || format!("`{text}`: SHARE:MS expected, SHARE below 1");
    let (share, ms) = text.split_once(':').ok_or_else(refused)?;
    let share = simulator::args::share(share).map_err(|_| refused())?;
    let ms = simulator::args::positive(ms).map_err(|_| refused())?;
    Ok((share, Millis(ms)))
}

#[derive(Clone, Copy, Debug)]
struct FaultArg(Fault);

impl FromStr for FaultArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!("`{text}`: slow:WORKER:FACTOR@SHARE, die:WORKER@SHARE or return:WORKER@SHARE expected")
        };
        let (what, at) = text.split_once('@').ok_or_else(refused)?;
        let at = simulator::args::non_negative(at)
            .ok()
            .filter(|at| *at <= 1.0)
            .ok_or_else(refused)?;
        let parts: Vec<&str> = what.split(':').collect();
        let (kind, worker) = match parts.as_slice() {
            ["die", worker] => (FaultKind::Die, worker),
            ["return", worker] => (FaultKind::Return, worker),
            ["slow", worker, factor] => {
                let factor = simulator::args::positive(factor).map_err(|_| refused())?;
                (FaultKind::Slow(factor), worker)
            }
            _ => return Err(refused()),
        };
        let worker = WorkerId(worker.parse().map_err(|_| refused())?);
        Ok(Self(Fault { worker, at, kind }))
    }
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Fifo => Self::Fifo,
            OrderArg::Sjf => Self::Sjf,
            OrderArg::Edf => Self::Edf,
        }
    }
}

impl Args {
    fn worker(&self, at: usize, block_tokens: u32) -> WorkerSpec {
        let blocks = self.capacity_blocks[at % self.capacity_blocks.len()];
        WorkerSpec {
            cost: PrefillCost {
                gamma_ms_per_token2: self.gamma,
                ..PrefillCost::linear(self.alpha[at % self.alpha.len()], self.beta)
            },
            capacity: Tokens(blocks.saturating_mul(u64::from(block_tokens))),
        }
    }

    fn config(
        &self,
        policy: PolicyName,
        cache: CacheRule,
        routers: Routers,
        block_tokens: u32,
    ) -> FleetConfig {
        let worker = |at: usize| self.worker(at, block_tokens);
        let defaults = FleetConfig::uniform(1, worker(0).cost, Tokens::ZERO);
        let mut settings = Settings {
            policy,
            ..Settings::default()
        };
        settings.kappa_max = self.kappa_max.unwrap_or(settings.kappa_max);
        settings.weights.locality = self.locality.unwrap_or(settings.weights.locality);
        let view = self.view.map_or(default_view(policy), |view| view.0);
        FleetConfig {
            workers: (0..self.workers as usize).map(worker).collect(),
            settings,
            utilisation_window: self
                .utilisation_window_s
                .map_or(defaults.utilisation_window, |seconds| Millis(seconds * 1e3)),
            cache,
            order: self.order.into(),
            routers,
            learn_costs: !self.known_costs,
            hold: self
                .hold_ms
                .filter(|_| policy == PolicyName::Tail)
                .map(|ms| Deferral { within: Millis(ms) }),
            view,
            decode: Decode {
                ms_per_token: self.decode_ms,
                chunk_tokens: self.chunk_tokens,
                interference_ms: self.interference_ms,
            },
            target: Target {
                ttft: Millis(self.xi_ms),
                share: self.share,
                next_prompt: Tokens(self.next_prompt_tokens),
            },
            faults: self.fault.iter().map(|fault| fault.0).collect(),
            pace: self
                .pace
                .load
                .map_or(Pace::Speed(self.pace.speed.unwrap_or(1.0)), Pace::Load),
            seed: self.seed,
            jitter_s: self.jitter_s,
            per_turn: self.per_turn,
            ..defaults
        }
    }

    fn caches(&self, policy: PolicyName) -> Vec<CacheRule> {
        match (self.cache.is_empty(), policy) {
            (false, _) => self.cache.clone(),
            (true, PolicyName::Tail) => vec![CacheRule::Tail],
            (true, _) => vec![CacheRule::Lru],
        }
    }
}

/// Returns the view of the caches that each rule was published with.
pub(crate) fn default_view(policy: PolicyName) -> View {
    match policy {
        PolicyName::CacheAware | PolicyName::CacheAwareSmg => View::Tree(TREE_TOKENS),
        _ => View::Mirror,
    }
}

/// Runs the policies and prints their reports. Fails if the trace cannot be read or played, or printing fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(fault) = args.fault.iter().find(|fault| fault.0.worker.0 >= args.workers) {
        anyhow::bail!(
            "a fault names worker {}, but there are only {} workers",
            fault.0.worker.0,
            args.workers
        );
    }
    if args.hold_ms.is_some() && args.routers.iter().any(|routers| routers.count > 1) {
        anyhow::bail!("--hold-ms requires a single router, but --routers has several");
    }
    let trace = args.input.trace.read(args.input.turns)?;
    let block_tokens = args.block_tokens.or(trace.block_tokens).unwrap_or(BLOCK_TOKENS);
    let mut workload = Workload::new(&trace.turns, block_tokens).context("this trace cannot be played")?;
    if let Some((share, objective)) = args.strict {
        let is_strict = |conversation: u64| {
            (fleet::mix(conversation ^ fleet::mix(args.seed)) as f64) < share * u64::MAX as f64
        };
        workload = workload
            .with_objectives(|at| is_strict(trace.turns[at].conversation.0).then_some(objective));
    }
    drop(trace);
    let mut reports = Vec::new();
    for &policy in &args.policies {
        for cache in args.caches(policy) {
            for &routers in &args.routers {
                let config = args.config(policy, cache, routers, block_tokens);
                reports.push(fleet::run(&workload, &config));
            }
        }
    }
    args.output.print(&reports, table)?;
    Ok(ExitCode::SUCCESS)
}

fn table(reports: &[FleetReport]) -> String {
    let mut text = format!(
        "{:<16} {:<14} {:<12} {:>8} {:>10} {:>10} {:>10} {:>10} {:>13} {:>7} {:>7} {:>16}",
        "policy",
        "cache",
        "routers",
        "turns",
        "p50",
        "p95",
        "p99",
        "mean",
        "TEL ms",
        "hits",
        "busy",
        "within objective"
    );
    for r in reports {
        text += &format!(
            "\n{:<16} {:<14} {:<12} {:>8} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>13.0} {:>6.1}% {:>6.1}% {:>15.1}%",
            r.policy,
            r.cache,
            r.routers,
            r.turns,
            r.p50_ms,
            r.p95_ms,
            r.p99_ms,
            r.mean_ms,
            r.tel_ms,
            r.hit_ratio * 100.0,
            r.utilisation * 100.0,
            r.slo_share * 100.0
        );
    }
    for r in reports {
        if let Some(own) = r.own_objective {
            text += &format!(
                "\n{:<16} {:<14} strict: {} of {} turns late, p95 {:.1} ms",
                r.policy, r.cache, own.late, own.turns, own.p95_ms
            );
        }
    }
    text + "\n\np50 to mean: time to first token in ms. TEL (tail excess latency): sum of the times beyond the objective.\n\
            hits: share of prompt tokens that were cached. busy: share of the workers' time."
}
