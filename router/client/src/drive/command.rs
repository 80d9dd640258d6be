//! `tailroute drive`: replays a trace against endpoints and reports the latency that users would see.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::client::ChatClient;
use super::plan::Plan;
use super::report::{DriveReport, TargetReport};
use super::run::{RunSettings, Samples, replay};
use super::stats::{Run, cpu_time};
use super::target::DriveTarget;
use simulator::fleet::mix;
use simulator::trace_source::{Trace, TraceSource, named};
use tokio::signal::unix::{SignalKind, signal};

/// Interval of progress lines without a terminal.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Replay a turn trace as streamed chat completions and report time to first token
///
/// Open loop: turns are sent when the trace says and timed from that moment, however slow the responses are. Only a
/// turn whose predecessor is still being answered waits for that response. With several targets, each round replays
/// the trace against every target in turn, and the report compares medians over rounds. Exit code 1: some turn had no
/// complete response. An interrupt or SIGTERM ends the replay; what was measured until then is reported.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute drive --trace gen:wildchat:1 --turns 200 --target http://127.0.0.1:8080 --speed 10\n  \
    tailroute drive --trace conv.jsonl.gz --turns 600 --speed 20 --rounds 3 \\\n    \
    --target round_robin=http://127.0.0.1:8081 --target tail=http://127.0.0.1:8082")]
pub struct Args {
    /// Turn trace or capture, plain or gzip, also in Mooncake's or Bailian's format; or a generator: gen:wildchat:SEED,
    /// gen:sharegpt:SEED, agents:SEED or hot:SEED.
    #[arg(long, value_name = "FILE", value_parser = named)]
    trace: (String, TraceSource),
    /// Endpoint, without /v1; give it several times to compare. With several URLs, separated by commas, each turn
    /// goes to any of them, as behind a load balancer without session affinity.
    #[arg(long = "target", value_name = "[NAME=]URL[,URL]", required = true)]
    targets: Vec<DriveTarget>,
    /// Speed-up over the trace's pace.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    speed: f64,
    /// Replay only the first N turns; the default is all of a file, 2000 of a generator.
    #[arg(long, value_name = "N")]
    turns: Option<usize>,
    /// Share of turns, from the start, that are sent but not counted.
    #[arg(long, default_value_t = 0.1, value_parser = share)]
    warmup_share: f64,
    /// Measurements per target, interleaved.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Model to request; by default the first that each target lists.
    #[arg(long)]
    model: Option<String>,
    /// Objective for time to first token, in ms: adds the share of turns within it.
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_ttft_ms: Option<f64>,
    /// Send no X-Session-ID: the endpoint has to recognise conversations by their prompts.
    #[arg(long)]
    no_session: bool,
    /// Timeout of a whole turn, such as 90s or 10m; a number alone is seconds.
    #[arg(long, value_name = "TIME", default_value_t = 600.0, value_parser = simulator::args::seconds)]
    timeout: f64,
    /// Maximum number of turns in flight, to protect this machine; delayed turns are reported.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    concurrency_limit: u32,
    /// Seed of the generated text.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Replays and reports. Fails if the trace cannot be read, or a target cannot be asked for its model.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let plan = plan(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let report = runtime.block_on(drive(&args, &plan))?;
    if args.json {
        simulator::terminal::print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        simulator::terminal::print(&report.table())?;
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    let Trace {
        turns, block_tokens, ..
    } = args.trace.1.read(args.turns)?;
    Ok(Plan::new(turns, block_tokens, args.speed, args.warmup_share))
}

async fn drive(args: &Args, plan: &Plan) -> anyhow::Result<DriveReport> {
    let client = ChatClient::new(Duration::from_secs_f64(args.timeout))?;
    let mut settings = Vec::with_capacity(args.targets.len());
    for target in &args.targets {
        let model = match &args.model {
            Some(model) => model.clone(),
            None => client.first_model(target).await.with_context(|| {
                format!(
                    "{} does not list its models; choose one with --model",
                    target.bases.join(",")
                )
            })?,
        };
        let urls = target.urls("/v1/chat/completions")?;
        let concurrency_limit = args.concurrency_limit as usize;
        settings.push(RunSettings {
            urls,
            model,
            session: !args.no_session,
            seed: args.seed,
            concurrency_limit,
        });
    }
    let bar = progress(plan.turns * args.targets.len() * usize::from(args.rounds));
    let mut runs = vec![Vec::new(); args.targets.len()];
    let mut stopped = Box::pin(stopped()?);
    let mut is_interrupted = false;
    'rounds: for round in 0..args.rounds {
        for (at, target) in args.targets.iter().enumerate() {
            bar.set_message(format!("{}, round {} of {}", target.name, round + 1, args.rounds));
            // Other words in every run: the same ones would hit the caches that the previous run filled.
            let seed = mix(args.seed ^ mix(u64::from(round) << 32 | at as u64));
            let settings = RunSettings {
                seed,
                ..settings[at].clone()
            };
            let before = cpu_time();
            let stop = async {
                stopped.as_mut().await;
                is_interrupted = true;
            };
            let replaying = replay(client.clone(), settings, plan, |_| bar.inc(1), stop);
            let samples = told_of(&bar, replaying).await;
            let cpu = cpu_time()
                .zip(before)
                .map(|(after, before)| after.saturating_sub(before));
            runs[at].push(Run::of(&samples, args.slo_ttft_ms, cpu));
            if is_interrupted {
                break 'rounds;
            }
        }
    }
    bar.finish_and_clear();
    let targets = args.targets.iter().zip(runs);
    // An interruption may have left no time for some.
    let targets = targets.filter(|(_, runs)| !runs.is_empty());
    Ok(DriveReport {
        trace: args.trace.0.clone(),
        speed: args.speed,
        turns: plan.turns,
        counted: plan.counted,
        rounds: usize::from(args.rounds),
        seed: args.seed,
        slo_ttft_ms: args.slo_ttft_ms,
        interrupted: is_interrupted,
        targets: targets
            .map(|(target, runs)| TargetReport::new(target, runs))
            .collect(),
    })
}

/// Returns a future that is ready once a signal asks the program to end.
fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Waits for a run. Prints its progress at intervals if standard error is not a terminal, and so shows no bar.
async fn told_of(bar: &ProgressBar, run: impl Future<Output = Samples>) -> Samples {
    let mut run = std::pin::pin!(run);
    let mut ticks = tokio::time::interval(TELL_INTERVAL);
    ticks.tick().await;
    loop {
        tokio::select! {
            samples = &mut run => return samples,
            _ = ticks.tick() => {
                if !std::io::stderr().is_terminal() {
                    let (done, all) = (bar.position(), bar.length().unwrap_or(0));
                    simulator::terminal::complain(&format!("{done} of {all} turns; {}", bar.message()));
                }
            }
        }
    }
}

/// Returns a progress bar on standard error, hidden if that is not a terminal.
pub fn progress(turns: usize) -> ProgressBar {
    let bar = ProgressBar::new(turns as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos}/{len} turns, {elapsed} of about {duration}  {msg}")
    {
        bar.set_style(style);
    }
    bar
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() && number > 0.0 && number < 1e9 {
        Ok(number)
    } else {
        Err("expected a number above 0".to_owned())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..1.0).contains(&number) {
        Ok(number)
    } else {
        Err("expected a share from 0 up to, not including, 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_generated_trace_is_planned_like_a_file() {
        let of = |trace: &str| {
            Cli::try_parse_from(["drive", "--target", "http://a", "--turns", "30", "--trace", trace])
        };
        for trace in ["gen:wildchat:1", "hot:1"] {
            let args = of(trace).unwrap().args;
            assert_eq!((plan(&args).unwrap().turns, &*args.trace.0), (30, trace));
        }
        assert!(of("gen:mars:1").is_err());
        let missing = plan(&of("nowhere.jsonl").unwrap().args).unwrap_err();
        assert_eq!(missing.to_string(), "cannot open trace nowhere.jsonl");
    }
}
