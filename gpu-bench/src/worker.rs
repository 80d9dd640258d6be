//! `gpu-bench worker URL`: the measurement from beginning to end.

use std::collections::HashSet;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::calibration::{Calibration, Range, VERSION};
use crate::fit::{Fit, fit};
use crate::grid::{self, Cell};
use crate::probe::{Model, ProbeError, Prober, Sample};
use crate::report;

/// Measure α, β, γ of a worker over HTTP and write a calibration file
///
/// Sends a few hundred streamed chat completions, one at a time, to an OpenAI-compatible worker that should otherwise
/// be idle, and fits ttft = β + α·u + γ·u·(h + u/2). The worker must report cached tokens (vLLM:
/// --enable-prompt-tokens-details; SGLang: --enable-cache-report).
/// Exit code 1: nothing was measured that can be trusted, and no file was written.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json")]
pub struct Args {
    /// The worker, without /v1.
    #[arg(value_parser = base_url)]
    pub url: String,
    /// Where the calibration is written.
    #[arg(long, value_name = "FILE", default_value = "calibration.json")]
    pub out: PathBuf,
    /// Model to ask for; left out, the first that the worker names.
    #[arg(long)]
    pub model: Option<String>,
    /// Histories to measure, in tokens.
    #[arg(long, value_delimiter = ',', default_value = "0,1024,4096,16384", value_parser = clap::value_parser!(u64).range(..=4_194_304))]
    pub history: Vec<u64>,
    /// New prompt lengths to measure, in tokens.
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,2048,4096", value_parser = clap::value_parser!(u64).range(1..=4_194_304))]
    pub uncached: Vec<u64>,
    /// How often each pair is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Seconds after which no further probe is begun; what was measured until then is fitted.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub budget_s: u64,
    /// Seconds that one probe may take.
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
    /// Least share of the variance that the fit has to explain.
    #[arg(long, default_value_t = 0.95, value_parser = share)]
    pub min_r2: f64,
    /// Seed of order, text and resamples.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the calibration as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Most samples that may be weighed down before the fit is distrusted.
const MOST_OUTLIERS: f64 = 0.25;

/// Failed probes in a row after which the worker is given up.
const MOST_FAILURES_IN_A_ROW: u32 = 3;

/// Measures, writes the file, prints the report.
///
/// # Errors
/// If the worker cannot be measured, or what was measured cannot be trusted or written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let calibration = runtime.block_on(measure(args))?;
    calibration.write(&args.out)?;
    let text = if args.json {
        serde_json::to_string_pretty(&calibration)?
    } else {
        format!(
            "{}\n\nwritten to {}",
            report::text(&calibration),
            args.out.display()
        )
    };
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Measures a worker and fits its cost.
///
/// # Errors
/// If the worker cannot be reached, does not stream, does not report cached tokens, fails too often, or the fit does
/// not hold.
pub async fn measure(args: &Args) -> anyhow::Result<Calibration> {
    let mut prober = Prober::new(args.url.clone(), Duration::from_secs(args.timeout_s), args.seed);
    let model = choose_model(&prober, args.model.as_deref()).await?;
    prober.use_model(model.id.clone());
    let mut bench = Bench::prepare(prober).await?;
    // A little room for the chat template and the answer.
    let longest = model.max_model_len.map(|longest| longest.saturating_sub(64));
    let cells = grid::cells(&args.history, &args.uncached, args.repeats, longest, args.seed);
    bench.measure(&cells, Duration::from_secs(args.budget_s)).await?;
    let fit = fit(&bench.samples, args.seed)?;
    accept(&fit, args.min_r2)?;
    let range = |value: fn(&Sample) -> u64| {
        let values = || bench.samples.iter().map(value);
        (values().min().unwrap_or(0), values().max().unwrap_or(0))
    };
    Ok(Calibration {
        version: VERSION,
        worker: args.url.clone(),
        model: model.id,
        measured_at_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        range: Range {
            history: range(|sample| sample.cached.0),
            uncached: range(|sample| sample.uncached.0),
        },
        fit,
        failed_probes: bench.failed,
        partly_cached_probes: bench.partly_cached,
        seed: args.seed,
    })
}

async fn choose_model(prober: &Prober, wanted: Option<&str>) -> anyhow::Result<Model> {
    match (prober.models().await, wanted) {
        (Ok(models), Some(wanted)) => {
            let named = models.into_iter().find(|model| model.id == wanted);
            Ok(named.unwrap_or(Model {
                id: wanted.to_owned(),
                max_model_len: None,
            }))
        }
        (Ok(models), None) => models
            .into_iter()
            .next()
            .ok_or(ProbeError::NoModel)
            .map_err(Into::into),
        (Err(error @ ProbeError::Connection(_)), _) | (Err(error), None) => Err(error.into()),
        (Err(_), Some(wanted)) => Ok(Model {
            id: wanted.to_owned(),
            max_model_len: None,
        }),
    }
}

fn accept(fit: &Fit, min_r2: f64) -> anyhow::Result<()> {
    ensure!(
        fit.r_squared >= min_r2,
        "the fit explains {:.1} % of the variance, less than the {:.1} % asked for: nothing was written; \
         is the worker idle? longer prompts (--uncached) and more --repeats help against noise",
        fit.r_squared * 100.0,
        min_r2 * 100.0
    );
    ensure!(
        fit.outlier_share <= MOST_OUTLIERS,
        "{:.0} % of the probes lie far from the fit: nothing was written; is the worker idle?",
        fit.outlier_share * 100.0
    );
    ensure!(
        fit.cost.alpha_ms_per_token > 0.0,
        "time does not grow with the prompt: nothing was written; try longer --uncached"
    );
    Ok(())
}

/// A measurement under way.
struct Bench {
    prober: Prober,
    /// Tokens of the chat template around a message, and per word of ours.
    overhead: f64,
    tokens_per_word: f64,
    samples: Vec<Sample>,
    primed: HashSet<(u32, u64)>,
    /// Names of texts are counted, so that no two are the same.
    named: u64,
    failed: u32,
    partly_cached: u32,
}

impl Bench {
    /// Learns how many tokens a word is, and makes sure that caching works and is reported.
    async fn prepare(prober: Prober) -> anyhow::Result<Self> {
        let mut bench = Self {
            prober,
            overhead: 0.0,
            tokens_per_word: 1.0,
            samples: Vec::new(),
            primed: HashSet::new(),
            named: 1 << 40,
            failed: 0,
            partly_cached: 0,
        };
        let (short, long) = (bench.fresh(128), bench.fresh(512));
        let tokens = |sample: Sample| (sample.uncached + sample.cached).as_f64();
        let few = tokens(bench.prober.probe(&short).await.context("first probe")?);
        let many = tokens(bench.prober.probe(&long).await.context("second probe")?);
        bench.tokens_per_word = ((many - few) / 384.0).max(0.1);
        bench.overhead = (few - 128.0 * bench.tokens_per_word).max(0.0);
        let again = bench.prober.probe(&long).await.context("third probe")?;
        if again.cached.0 == 0 {
            bail!(
                "the same prompt twice, and no cached tokens reported: prefix caching is off, or not reported \
                 (vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: --enable-cache-report)"
            );
        }
        Ok(bench)
    }

    /// Words that nobody has sent before.
    fn fresh(&mut self, words: u64) -> String {
        self.named += 1;
        self.prober.words(self.named, words)
    }

    fn words_of(&self, tokens: f64) -> u64 {
        (tokens / self.tokens_per_word).round().max(0.0) as u64
    }

    async fn measure(&mut self, cells: &[Cell], budget: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let bar = ProgressBar::new(cells.len() as u64);
        if let Ok(style) =
            ProgressStyle::with_template("{bar:40} {pos}/{len} probes, {elapsed} of about {duration}")
        {
            bar.set_style(style);
        }
        let mut in_a_row = 0;
        for cell in cells {
            if begun.elapsed() > budget {
                break;
            }
            match self.cell(*cell).await {
                Ok(sample) => {
                    in_a_row = 0;
                    self.samples.push(sample);
                }
                Err(error) => {
                    in_a_row += 1;
                    self.failed += 1;
                    let wrong = "the worker fails too often";
                    ensure!(
                        in_a_row < MOST_FAILURES_IN_A_ROW,
                        anyhow::Error::new(error).context(wrong)
                    );
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let probes = self.samples.len() + self.failed as usize;
        ensure!(
            self.failed as usize * 5 <= probes,
            "{} of {probes} probes failed",
            self.failed
        );
        Ok(())
    }

    async fn cell(&mut self, cell: Cell) -> Result<Sample, ProbeError> {
        // The template's own tokens are part of the history, where there is one.
        let around = self.overhead;
        let (history, uncached) = (cell.history as f64, cell.uncached as f64);
        if cell.history == 0 {
            let words = self.words_of(uncached - around).max(1);
            let prompt = self.fresh(words);
            return self.prober.probe(&prompt).await;
        }
        let name = u64::from(cell.pass) << 32 | cell.history;
        let prefix = self.prober.words(name, self.words_of(history - around).max(1));
        if self.primed.insert((cell.pass, cell.history)) {
            self.prober.probe(&prefix).await?;
        }
        let words = self.words_of(uncached).max(1);
        let prompt = prefix + &self.fresh(words);
        let sample = self.prober.probe(&prompt).await?;
        self.partly_cached += u32::from(sample.cached.as_f64() < 0.75 * history - 64.0);
        Ok(sample)
    }
}

fn base_url(text: &str) -> Result<String, String> {
    let base = text.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let uri: http::Uri = base.parse().map_err(|error| format!("{error}"))?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() || uri.query().is_some() {
        return Err("expected a url such as http://10.0.0.1:8000".to_owned());
    }
    Ok(base.to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err("expected a share from 0 to 1".to_owned())
    }
}
