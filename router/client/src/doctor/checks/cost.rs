//! The cost of a prefill on the worker is measured or learned.

use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::{CheckVerdict, counted};
use super::untold;

/// Responses after which a worker's own cost is used.
const TRUSTED: u64 = 16;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let alpha = worker.cost.alpha_ms_per_token;
    let answers = worker.cost_answers.unwrap_or(0);
    let seen = counted(answers as usize, "response");
    let measure = format!("gpu-bench worker WORKER_URL --push http://{}", facts.router);
    if let Some(slow) = &worker.slow {
        return CheckVerdict::warning(
            format!(
                "it is slow: a typical prompt takes {:.0} ms instead of {:.0} ms, {:.1} times as long as its baseline ({})",
                slow.typical_prompt_ms, slow.baseline_typical_prompt_ms, slow.factor, slow.against
            ),
            format!(
                "tailroute ctl workers cordon {} --reason …, and look at its GPU; if that is its speed: {measure}",
                worker.name
            ),
        );
    }
    if worker.alpha_set.is_some() {
        return CheckVerdict::warning(
            format!("α is overridden: {alpha:.4} ms per token, whatever responses show"),
            format!("tailroute ctl workers alpha-revert {} --reason …", worker.name),
        );
    }
    let from = |source: &str| CheckVerdict::ok(format!("α {alpha:.4} ms per token, {source}"));
    match worker.cost_source.as_deref() {
        Some("calibrated") => from(&format!("calibrated, and {seen} since")),
        Some("configured") => from(&format!("configured, and {seen} since")),
        Some("learned") if answers >= TRUSTED => from(&format!("learned from {seen}")),
        Some("learned") => CheckVerdict::note(
            format!("α {alpha:.4} ms per token, learned from {seen} so far"),
            format!("wait for {TRUSTED}, or measure it: {measure}"),
        ),
        Some("fleet") => from("the median of the other workers"),
        Some("default") if !worker.is_up() => super::unreached(worker),
        Some("default") => CheckVerdict::warning(
            format!("α is the default of {alpha:.4} ms per token: no response has shown the worker's speed"),
            format!("send turns, or measure it: {measure}"),
        ),
        _ => untold(),
    }
}
