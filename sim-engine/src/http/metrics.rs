//! `/metrics`, with vLLM's metric names. Times are wall times.

use std::fmt::{Display, Write as _};

use crate::rank::Shared;
use crate::scheduler::{Counters, TTFT_BUCKETS_S};
use crate::stats::Stats;

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str) {
        // Writing to a String cannot fail.
        let help = if name.starts_with("vllm:") {
            "What vLLM means by it."
        } else {
            "Of the simulated engine."
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, extra: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{}{extra}}} {value}", self.labels);
    }

    fn gauge(&mut self, name: &str, value: impl Display) {
        self.head(name, "gauge");
        self.line(name, "", value);
    }

    fn counter(&mut self, name: &str, value: impl Display) {
        self.head(name, "counter");
        self.line(name, "", value);
    }

    fn counters<const N: usize>(&mut self, name: &str, label: &str, values: [(&str, u64); N]) {
        self.head(name, "counter");
        for (value, count) in values {
            self.line(name, &format!(",{label}=\"{value}\""), count);
        }
    }

    fn sum(&mut self, name: &str, sum: impl Display, count: u64) {
        self.head(name, "histogram");
        self.line(&format!("{name}_bucket"), ",le=\"+Inf\"", count);
        self.line(&format!("{name}_sum"), "", sum);
        self.line(&format!("{name}_count"), "", count);
    }
}

pub(super) fn render(shared: &Shared) -> String {
    let stats = shared.stats();
    let counters = shared.with(|scheduler, _| scheduler.counters.clone());
    let config = &shared.config;
    let model = config.model.replace('\\', "\\\\").replace('"', "\\\"");
    let mut page = Page {
        text: String::with_capacity(8192),
        labels: format!("engine=\"0\",model_name=\"{model}\""),
    };
    page.gauge("vllm:num_requests_running", stats.running);
    page.gauge("vllm:num_requests_waiting", stats.waiting);
    // As in vLLM, evictable blocks count as free.
    let usage = stats.cache_pinned_tokens as f64 / (stats.cache_capacity_tokens as f64).max(1.0);
    page.gauge("vllm:kv_cache_usage_perc", usage);
    if config.tells_capacity {
        page.head("vllm:cache_config_info", "gauge");
        let info = format!(
            ",block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"True\"",
            config.block_size, config.capacity_blocks
        );
        page.line("vllm:cache_config_info", &info, 1);
    }
    page.counter("vllm:prefix_cache_queries_total", counters.prompt_tokens);
    page.counter("vllm:prefix_cache_hits_total", counters.cached_tokens);
    page.counter("vllm:prompt_tokens_total", counters.prompt_tokens);
    page.counter("vllm:generation_tokens_total", counters.generation_tokens);
    page.counters(
        "vllm:request_success_total",
        "finished_reason",
        [
            ("stop", counters.completed - counters.ran_out),
            ("length", counters.ran_out),
            ("abort", counters.aborted.total()),
        ],
    );
    ttft(&mut page, &counters);
    let prefills = counters.prefills;
    page.sum(
        "vllm:request_queue_time_seconds",
        counters.queue_seconds,
        prefills,
    );
    page.sum(
        "vllm:request_prefill_time_seconds",
        counters.prefill_seconds,
        prefills,
    );
    page.sum(
        "vllm:request_prefill_kv_computed_tokens",
        counters.computed_tokens,
        prefills,
    );
    own(&mut page, &stats, &counters);
    page.text
}

fn own(page: &mut Page, stats: &Stats, counters: &Counters) {
    page.counter("sim_engine:aborted_requests_total", counters.aborted.total());
    page.counter("sim_engine:faults_injected_total", stats.faults_injected);
    page.gauge("sim_engine:evict_first_tokens", stats.cache_evict_first_tokens);
    page.gauge("sim_engine:cached_tokens", stats.cache_used_tokens);
    let memory = stats.memory;
    page.counters(
        "sim_engine:hints_total",
        "outcome",
        [
            ("applied", memory.hints_applied),
            ("expired", memory.hints_expired),
            ("rejected", memory.hints_rejected),
            ("stale", memory.hints_stale),
            ("unknown", memory.hints_unknown),
        ],
    );
    // By the names of the plugin for vLLM.
    page.counters(
        "tailroute:evicted_first_tokens_total",
        "cause",
        [
            ("xi", memory.tokens_freed_by_xi),
            ("hint", memory.tokens_freed_by_hints),
        ],
    );
    if let Some(objective) = &stats.objective {
        page.gauge("tailroute:objective_xi_tokens", objective.xi_tokens);
        page.gauge(
            "tailroute:objective_next_prompt_tokens",
            objective.next_prompt_tokens,
        );
        page.gauge("tailroute:objective_epoch", objective.epoch);
        page.gauge("tailroute:objective_t_lru", u8::from(objective.t_lru));
    }
    if let Some(age_s) = stats.objective_age_s {
        page.gauge("tailroute:objective_age_seconds", age_s);
    }
}

fn ttft(page: &mut Page, counters: &Counters) {
    let name = "vllm:time_to_first_token_seconds";
    page.head(name, "histogram");
    let mut below = 0;
    for (bound, count) in TTFT_BUCKETS_S.iter().zip(counters.ttft_buckets) {
        below += count;
        page.line(&format!("{name}_bucket"), &format!(",le=\"{bound:?}\""), below);
    }
    page.line(&format!("{name}_bucket"), ",le=\"+Inf\"", counters.ttft_count);
    page.line(&format!("{name}_sum"), "", counters.ttft_seconds);
    page.line(&format!("{name}_count"), "", counters.ttft_count);
}
