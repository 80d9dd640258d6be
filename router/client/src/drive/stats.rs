//! Statistics of a run's samples.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::stats::Sorted;
use serde::Serialize;

use super::run::{Samples, TurnSample};

/// A summary of a distribution. All zero if `count` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Median. Percentiles are interpolated linearly between the two nearest values.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Summarises `values`.
    pub fn of(values: Vec<f64>) -> Self {
        let sorted = Sorted::new(values);
        let count = sorted.values().len();
        if count == 0 {
            return Self::default();
        }
        Self {
            count,
            p50: sorted.percentile(50.0),
            p90: sorted.percentile(90.0),
            p95: sorted.percentile(95.0),
            p99: sorted.percentile(99.0),
            mean: sorted.values().iter().sum::<f64>() / count as f64,
            max: sorted.percentile(100.0),
        }
    }
}

/// The statistics of one run against one target. Failures cover all turns, including the warm-up; times cover the
/// counted turns with a complete response.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// Turns that ended, including the warm-up.
    pub turns: usize,
    /// Turns after the warm-up.
    pub counted: usize,
    /// Turns with no response, or an invalid one.
    pub errors: u64,
    /// Responses that began but did not complete.
    pub incomplete: u64,
    /// Errors and incomplete responses, by kind.
    pub failures: BTreeMap<String, u64>,
    /// The error text of the first failure of each kind.
    pub first_words: BTreeMap<String, String>,
    /// Time to first content, from the intended send time.
    pub ttft_ms: Summary,
    /// Time to the end of the response, from the intended send time.
    pub end_to_end_ms: Summary,
    /// Time between consecutive pieces of content.
    pub inter_token_ms: Summary,
    /// Share of counted turns with first content within the objective; failed turns count as missed.
    pub slo_share: Option<f64>,
    /// Prompt tokens of the counted turns, as reported by the engine.
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
    /// `cached_tokens / prompt_tokens`; `None` if the engine never reports cached tokens. If it reports them for some
    /// responses, a missing value counts as zero: SGLang and older vLLM leave out a zero.
    pub hit_ratio: Option<f64>,
    /// Response tokens of the counted turns.
    pub completion_tokens: u64,
    /// Responses without usage.
    pub without_usage: u64,
    /// Delay of turns behind their intended send time.
    pub send_lag_ms: Summary,
    /// Turns that waited for their predecessor's response.
    pub held: u64,
    /// Turns delayed by the concurrency limit.
    pub limited: u64,
    /// Seconds from the first turn to the end of the run.
    pub wall_s: f64,
    /// Processor time of this generator in seconds, if the platform reports it.
    pub cpu_s: Option<f64>,
}

impl Run {
    /// Computes the statistics of a run.
    pub fn of(samples: &Samples, slo_ttft_ms: Option<f64>, cpu: Option<Duration>) -> Self {
        let mut run = Self {
            turns: samples.turns.len(),
            limited: samples.limited,
            wall_s: samples.wall.as_secs_f64(),
            cpu_s: cpu.map(|cpu| cpu.as_secs_f64()),
            ..Self::default()
        };
        let mut met = 0u64;
        let mut tells_cached = false;
        for sample in &samples.turns {
            run.held += u64::from(sample.held);
            run.counted += usize::from(sample.counted);
            if let Some(failure) = &sample.failure {
                *run.failures.entry(failure.name()).or_default() += 1;
                if let Some(detail) = &sample.detail {
                    run.first_words
                        .entry(failure.name())
                        .or_insert_with(|| detail.clone());
                }
                let count = if failure.is_incomplete() {
                    &mut run.incomplete
                } else {
                    &mut run.errors
                };
                *count += 1;
            } else if sample.counted {
                met += u64::from(
                    sample
                        .ttft_ms
                        .is_some_and(|ttft| slo_ttft_ms.is_some_and(|slo| ttft <= slo)),
                );
                tells_cached |= run.add_usage(sample);
            }
        }
        let good: Vec<&TurnSample> = samples
            .turns
            .iter()
            .filter(|turn| turn.counted && turn.failure.is_none())
            .collect();
        run.ttft_ms = Summary::of(good.iter().filter_map(|turn| turn.ttft_ms).collect());
        run.end_to_end_ms = Summary::of(good.iter().map(|turn| turn.took_ms).collect());
        run.inter_token_ms = Summary::of(
            good.iter()
                .flat_map(|turn| &turn.gaps_ms)
                .map(|gap| f64::from(*gap))
                .collect(),
        );
        run.send_lag_ms = Summary::of(samples.turns.iter().map(|turn| turn.lag_ms).collect());
        run.slo_share = slo_ttft_ms
            .filter(|_| run.counted > 0)
            .map(|_| met as f64 / run.counted as f64);
        run.hit_ratio = tells_cached.then(|| run.cached_tokens as f64 / run.prompt_tokens.max(1) as f64);
        run
    }

    /// Adds a response's counts. Returns whether it reported cached tokens.
    fn add_usage(&mut self, sample: &TurnSample) -> bool {
        let Some(usage) = sample.usage else {
            self.without_usage += 1;
            return false;
        };
        self.prompt_tokens += usage.prompt_tokens;
        self.completion_tokens += usage.completion_tokens;
        self.cached_tokens += usage.cached_tokens.unwrap_or(0);
        usage.cached_tokens.is_some()
    }

    /// Returns the compared figures by name; `None` for those not measured.
    pub fn figures(&self) -> Vec<(&'static str, Option<f64>)> {
        let measured = |summary: &Summary, value: f64| (summary.count > 0).then_some(value);
        let (ttft, whole, gap) = (&self.ttft_ms, &self.end_to_end_ms, &self.inter_token_ms);
        vec![
            ("errors", Some(self.errors as f64)),
            ("incomplete", Some(self.incomplete as f64)),
            ("ttft_p50_ms", measured(ttft, ttft.p50)),
            ("ttft_p90_ms", measured(ttft, ttft.p90)),
            ("ttft_p95_ms", measured(ttft, ttft.p95)),
            ("ttft_p99_ms", measured(ttft, ttft.p99)),
            ("ttft_mean_ms", measured(ttft, ttft.mean)),
            ("ttft_max_ms", measured(ttft, ttft.max)),
            ("slo_share", self.slo_share),
            ("hit_ratio", self.hit_ratio),
            ("end_to_end_p50_ms", measured(whole, whole.p50)),
            ("end_to_end_p95_ms", measured(whole, whole.p95)),
            ("inter_token_p50_ms", measured(gap, gap.p50)),
            ("inter_token_p95_ms", measured(gap, gap.p95)),
            ("prompt_tokens", Some(self.prompt_tokens as f64)),
            ("cached_tokens", Some(self.cached_tokens as f64)),
            ("completion_tokens", Some(self.completion_tokens as f64)),
            ("held_turns", Some(self.held as f64)),
            ("limited_turns", Some(self.limited as f64)),
            (
                "send_lag_p99_ms",
                measured(&self.send_lag_ms, self.send_lag_ms.p99),
            ),
            (
                "send_lag_max_ms",
                measured(&self.send_lag_ms, self.send_lag_ms.max),
            ),
            ("wall_s", Some(self.wall_s)),
            ("cpu_s", self.cpu_s),
        ]
    }
}

/// Returns the processor time used by this process; `None` on platforms other than Linux.
pub fn cpu_time() -> Option<Duration> {
    // Fields 14 and 15 of /proc/self/stat, after the name in parentheses, in hundredths of a second.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields
        .get(11..13)?
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::super::answer::TokenUsage;
    use super::super::client::TurnFailure;
    use super::*;

    fn sample(ttft_ms: f64, failure: Option<TurnFailure>) -> TurnSample {
        let usage = Some(TokenUsage {
            prompt_tokens: 100,
            completion_tokens: 2,
            cached_tokens: Some(25),
        });
        TurnSample {
            counted: true,
            held: false,
            lag_ms: 0.0,
            ttft_ms: Some(ttft_ms),
            took_ms: 2.0 * ttft_ms,
            gaps_ms: vec![1.0],
            usage,
            failure,
            detail: None,
        }
    }

    #[test]
    fn percentiles_are_interpolated() {
        let summary = Summary::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((summary.p50, summary.mean, summary.max), (2.5, 2.5, 4.0));
        assert!((summary.p95 - 3.85).abs() < 1e-12);
        assert_eq!(Summary::of(Vec::new()), Summary::default());
    }

    #[test]
    fn missing_cached_tokens_count_as_zero_if_any_response_reports_them() {
        let silent = |cached_tokens| {
            let mut sample = sample(1.0, None);
            sample.usage = sample.usage.map(|usage| TokenUsage {
                cached_tokens,
                ..usage
            });
            sample
        };
        let ratio = |cached: [Option<u64>; 2]| {
            let turns = cached.map(silent).to_vec();
            Run::of(
                &Samples {
                    turns,
                    ..Samples::default()
                },
                None,
                None,
            )
            .hit_ratio
        };
        assert_eq!(ratio([Some(50), None]), Some(0.25));
        assert_eq!(ratio([None, None]), None);
    }

    #[test]
    fn a_failed_turn_misses_the_objective_and_has_no_time() {
        let mut turns = vec![
            sample(10.0, None),
            sample(1.0, Some(TurnFailure::Reset)),
            sample(90.0, None),
        ];
        turns.push(TurnSample {
            counted: false,
            ..sample(1.0, Some(TurnFailure::Status(503)))
        });
        let run = Run::of(
            &Samples {
                turns,
                ..Samples::default()
            },
            Some(50.0),
            None,
        );
        assert_eq!((run.turns, run.counted, run.errors, run.incomplete), (4, 3, 1, 1));
        assert_eq!(run.slo_share, Some(1.0 / 3.0));
        assert_eq!((run.ttft_ms.count, run.ttft_ms.p50), (2, 50.0));
        assert_eq!(run.hit_ratio, Some(0.25));
        assert_eq!(
            run.failures,
            BTreeMap::from([("http_503".to_owned(), 1), ("reset".to_owned(), 1)])
        );
    }
}
