//! Generates the reference of metrics, docs/metrics.md, from the table.

use std::fmt::Write as _;

use super::spec::{Kind, Label, MAX_SERIES, MAX_WORKERS, OTHER, Spec, Values};
use super::table::TABLE;

const HEAD: &str = "\
<!-- Generated from router/metrics by `make generate`; a test says when it is out of date. -->

# Metrics

This page lists every metric of `GET /metrics` on the admin port. Clients whose `Accept` header names `application/openmetrics-text`,
such as Prometheus, get OpenMetrics 1.0; others get the older text format, without exemplars. The buckets of histograms with exemplars
carry the trace id of their last request; where requests are [traced](observability.md#from-a-metric-to-a-trace), only of requests whose
traces are kept.
";

/// Returns docs/metrics.md.
#[must_use]
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    let series: usize = TABLE
        .iter()
        .flat_map(|(_, specs)| *specs)
        .map(Spec::most_series)
        .sum();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "
Labels are bounded, so that one router is at most {series} series whatever its fleet, its clients and its models (a test keeps
that below {MAX_SERIES}, and drives 10,000 workers). The first {MAX_WORKERS} workers of the configuration, and those that are
added while there is room, have separate series; of the others, counters and histograms add up under
`worker=\"{other}\"`, and gauges are left out, except `tailroute_workers`. Each of them is in
`GET /admin/v1/slo` and in the decisions ([explain.md](explain.md)).
",
        other = OTHER,
    );
    for (about, specs) in TABLE {
        let _ = write!(
            page,
            "\n## {about}\n\n| metric | type | unit | labels | series at most | meaning | semantic convention |\n|---|---|---|---|---|---|---|\n"
        );
        for spec in *specs {
            line(&mut page, spec);
        }
    }
    page
}

fn line(page: &mut String, spec: &Spec) {
    let kind = match spec.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(buckets) if buckets.exemplars => "histogram, exemplars",
        Kind::Histogram(_) => "histogram",
    };
    let labels: Vec<String> = spec.labels.iter().map(label).collect();
    let convention = spec.gen_ai.map_or_else(String::new, |name| format!("`{name}`"));
    let _ = writeln!(
        page,
        "| `{}` | {kind} | {} | {} | {} | {} | {convention} |",
        spec.name,
        spec.unit,
        labels.join("; "),
        spec.most_series(),
        spec.help,
    );
}

fn label(label: &Label) -> String {
    match label.values {
        Values::Worker => format!("`{}`", label.name),
        Values::Of(values) => {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            format!("`{}`: {}", label.name, values.join(", "))
        }
        Values::Named(what, most) => format!("`{}`: {what}; at most {most}", label.name),
    }
}
