use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use policy::slo::Cause;
use policy::units::Millis;

use super::labelled::{Gauge, Histogram, IntGauge};
use super::spec::{Kind, MAX_SERIES, MAX_WORKERS, OTHER, Spec, Values};
use super::*;
use telemetry::context::TraceId;

fn page(metrics: &Metrics, format: Format) -> String {
    format.write(&metrics.registry).unwrap()
}

fn samples(page: &str) -> usize {
    page.lines().filter(|line| !line.starts_with('#')).count()
}

/// Returns the exposed tail excess of a class on a worker, in seconds.
fn tail_excess(metrics: &Metrics, class: &str, worker: &str) -> Option<f64> {
    let series = format!("tailroute_tail_excess_seconds_total{{class=\"{class}\",worker=\"{worker}\"}} ");
    let page = page(metrics, Format::Text);
    page.lines()
        .find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

fn all() -> impl Iterator<Item = &'static Spec> {
    TABLE.iter().flat_map(|(_, specs)| *specs)
}

fn find(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.name == name)
}

#[test]
fn the_generated_reference_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/metrics.md is out of date: run `make generate`"
    );
}

#[test]
fn every_metric_of_the_table_is_made_once_and_named_as_the_field_does() {
    Metrics::new().unwrap();
    let mut names = BTreeSet::new();
    for spec in all() {
        assert!(names.insert(spec.name), "{} is there twice", spec.name);
        let counts = spec.name.ends_with("_total");
        assert_eq!(counts, spec.kind == Kind::Counter, "{}", spec.name);
        assert!(spec.help.ends_with('.'), "{}: a help is a sentence", spec.name);
        assert!(!spec.unit.is_empty(), "{} is in no unit", spec.name);
        for unit in ["seconds", "tokens", "bytes"] {
            let named = spec
                .name
                .trim_end_matches("_total")
                .ends_with(&format!("_{unit}"));
            assert!(!named || spec.unit == unit, "{} is in {}", spec.name, spec.unit);
            let names_it = spec.name.contains(unit) || spec.name == "gen_ai_client_token_usage";
            assert!(
                spec.unit != unit || names_it,
                "{} does not name {unit}",
                spec.name
            );
        }
    }
}

#[test]
fn what_is_not_in_the_table_cannot_be_made() {
    let metrics = Registrar::new(TABLE);
    let told = |made: Result<Labelled<Counter>, MetricError>| made.err().unwrap();
    assert_eq!(
        told(metrics.labelled("nonsense_total")),
        MetricError::Unknown("nonsense_total")
    );
    let gauge = "tailroute_tasks";
    assert_eq!(told(metrics.labelled(gauge)), MetricError::OtherKind(gauge));
    let counter = "tailroute_retries_total";
    metrics.labelled::<Counter>(counter).unwrap();
    assert_eq!(told(metrics.labelled(counter)), MetricError::Twice(counter));
}

#[test]
fn all_series_together_are_bounded() {
    let most: usize = all().map(Spec::most_series).sum();
    assert!(most < MAX_SERIES, "{most}");
}

/// Every combination of the values of a metric's labels, with these workers, and with ten more of these names than have
/// series of their own.
fn combinations(spec: &Spec, workers: &[String], names: &[String]) -> Vec<Vec<String>> {
    let values = spec.labels.iter().map(|label| match label.values {
        Values::Worker => workers.to_vec(),
        Values::Of(values) => values.iter().map(|value| (*value).to_owned()).collect(),
        Values::Named(_, most) => names[..most + 10].to_vec(),
    });
    values.fold(vec![Vec::new()], |all, values| {
        let with = |before: &Vec<String>| -> Vec<Vec<String>> {
            let one = |value: &String| [before.clone(), vec![value.clone()]].concat();
            values.iter().map(one).collect()
        };
        all.iter().flat_map(with).collect()
    })
}

#[test]
fn ten_thousand_workers_with_everything_that_can_happen_to_each_stay_below_twenty_thousand_series() {
    let workers: Vec<String> = (0..10_000).map(|worker| format!("w{worker}")).collect();
    let names: Vec<String> = (0..300).map(|name| format!("n{name}")).collect();
    let metrics = Registrar::new(TABLE);
    for spec in all() {
        let combinations = combinations(spec, &workers, &names);
        let every = combinations
            .iter()
            .map(|values| -> Vec<&str> { values.iter().map(String::as_str).collect() });
        match spec.kind {
            Kind::Counter => {
                let metric: Labelled<Counter> = metrics.labelled(spec.name).unwrap();
                every.for_each(|values| {
                    metric.inc(&values);
                });
            }
            Kind::Gauge => {
                let metric: Labelled<IntGauge> = metrics.labelled(spec.name).unwrap();
                every.for_each(|values| {
                    metric.set(&values, 1);
                });
            }
            Kind::Histogram(_) => {
                let metric: Labelled<Histogram> = metrics.labelled(spec.name).unwrap();
                every.for_each(|values| metric.observe(&values, 0.1));
            }
        }
    }
    let (registry, ..) = metrics.done();
    let page = Format::Text.write(&registry).unwrap();
    let (found, most): (usize, usize) = (samples(&page), all().map(Spec::most_series).sum());
    assert!(found <= most && found < MAX_SERIES, "{found} of {most}");
    assert!(found > MAX_SERIES / 3, "{found}: the test has lost its way");
    let turns = |worker: &str| format!("tailroute_worker_turns_total{{worker=\"{worker}\"}}");
    assert!(page.contains(&format!("{} 1\n", turns(&format!("w{}", MAX_WORKERS - 1)))));
    assert!(!page.contains(&turns(&format!("w{MAX_WORKERS}"))));
    assert!(page.contains(&format!("{} {}\n", turns(OTHER), 10_000 - MAX_WORKERS)));
    let in_flight = format!("tailroute_worker_in_flight{{worker=\"{OTHER}\"}}");
    assert!(
        !page.contains(&in_flight),
        "the last of many gauges is no sum of them"
    );
}

#[test]
fn threads_that_add_and_remove_series_at_once_lose_no_count() {
    const THREADS: usize = 4;
    for _ in 0..20 {
        let (metrics, start) = (Metrics::new().unwrap(), Barrier::new(THREADS + 1));
        thread::scope(|scope| {
            for own in 0..THREADS {
                let (metrics, start) = (&metrics, &start);
                scope.spawn(move || {
                    start.wait();
                    for worker in 0..8 {
                        metrics.retry(&format!("all-{worker}"));
                        metrics.retry(&format!("{own}-{worker}"));
                    }
                });
            }
            scope.spawn(|| {
                start.wait();
                for _ in 0..20 {
                    metrics.retry("leaves");
                    metrics.left("leaves");
                }
            });
        });
        let page = page(&metrics, Format::Text);
        let count = |worker: &str| {
            let series = format!("tailroute_retries_total{{worker=\"{worker}\"}} ");
            page.lines()
                .find_map(|line| line.strip_prefix(&series)?.parse::<usize>().ok())
        };
        for worker in 0..8 {
            assert_eq!(count(&format!("all-{worker}")), Some(THREADS));
            for own in 0..THREADS {
                assert_eq!(count(&format!("{own}-{worker}")), Some(1));
            }
        }
        assert_eq!(count("leaves"), None);
    }
}

#[test]
fn the_same_workers_have_series_of_their_own_in_every_metric() {
    let metrics = Metrics::new().unwrap();
    let names: Vec<String> = (0..MAX_WORKERS).map(|worker| format!("w{worker}")).collect();
    metrics.name_workers(names.iter().map(String::as_str));
    for worker in ["late", "w0"] {
        metrics.retry(worker);
        metrics.decision("tail", "least_cost", worker);
    }
    let page = page(&metrics, Format::Text);
    for name in ["tailroute_retries_total", "tailroute_worker_turns_total"] {
        assert!(page.contains(&format!("{name}{{worker=\"w0\"}} 1")), "{name}");
        assert!(
            page.contains(&format!("{name}{{worker=\"{OTHER}\"}} 1")),
            "{name}"
        );
    }
}

#[test]
fn names_that_others_give_are_bounded_and_escaped() {
    let spec = find("gen_ai_server_time_to_first_token_seconds").unwrap();
    let metric = Labelled::<Histogram>::new(spec, Workers::default());
    for model in 0..1000 {
        metric.observe(&["chat", &format!("m{model}")], 0.1);
    }
    let Values::Named(_, most) = spec.labels[1].values else {
        panic!("models are names from outside");
    };
    assert_eq!(metric.len(), most + 1);
    let metrics = Metrics::new().unwrap();
    metrics.violation(&"c".repeat(1 << 20), Cause::Queue);
    assert!(page(&metrics, Format::Text).len() < 1 << 20);
    metrics.violation("say \"x\\y\"\n", Cause::Queue);
    assert!(page(&metrics, Format::Text).contains(r#"class="say \"x\\y\"\n""#));
}

#[test]
fn a_bucket_names_the_trace_of_its_last_request_to_those_who_read_openmetrics() {
    let metrics = Metrics::new().unwrap();
    let trace = |digit: char| TraceId::read(digit.to_string().repeat(32).as_bytes());
    let first_token = |ms: f64, digit| {
        metrics.first_token("w", [Millis(ms), Millis(1.0)], trace(digit));
    };
    first_token(30.0, 'a');
    first_token(30.0, 'b');
    first_token(300.0, 'c');
    metrics.judged("default", "w", Millis::ZERO);
    let open = page(&metrics, Format::OpenMetrics);
    let bucket = |le: &str, count, digit: &str| {
        let trace = digit.repeat(32);
        format!(
            "tailroute_time_to_first_token_seconds_bucket{{le=\"{le}\",worker=\"w\"}} {count} # {{trace_id=\"{trace}\"}}"
        )
    };
    assert!(open.contains(&bucket("0.05", 2, "b")), "{open}");
    assert!(open.contains(&bucket("0.3", 3, "c")), "{open}");
    assert!(open.ends_with("# EOF\n"));
    let older = page(&metrics, Format::Text);
    assert!(!older.contains("trace_id") && !older.contains("EOF"));
    assert_eq!(samples(&older), samples(&open));
    assert!(older.contains("# TYPE tailroute_slo_turns_total counter\n"));
    assert!(older.contains("# HELP tailroute_slo_turns_total Turns by the class"));
    assert!(open.contains("# TYPE tailroute_slo_turns counter\n"));
}

#[test]
fn a_reader_gets_the_format_that_it_names() {
    // Prometheus's header.
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
    for other in ["", "*/*", "text/plain", "application/json"] {
        assert_eq!(Format::accepted(other), Format::Text, "{other}");
    }
}

#[test]
fn whole_and_real_numbers_are_written_as_such() {
    let spec = find("tailroute_slo_share_ratio").unwrap();
    let metric = Labelled::<Gauge>::new(spec, Workers::default());
    metric.set(&[], 0.85);
    let mut registry = Registry::default();
    registry.register("x", "X", metric);
    assert!(Format::Text.write(&registry).unwrap().ends_with("\nx 0.85\n"));
}

#[test]
fn the_tail_excess_is_the_sum_of_what_turns_took_beyond_their_objective() {
    let metrics = Metrics::new().unwrap();
    for excess in [250.0, 0.0, 1500.0] {
        metrics.judged("default", "w", Millis(excess));
    }
    assert_eq!(tail_excess(&metrics, "default", "w"), Some(1.75));
    assert_eq!(metrics.slo_turns("default"), (1, 2));
}

#[test]
fn one_turn_that_is_very_late_outweighs_many_that_are_a_little_late() {
    let metrics = Metrics::new().unwrap();
    for _ in 0..8 {
        metrics.judged("many", "w", Millis(125.0));
    }
    metrics.judged("few", "w", Millis(16_000.0));
    let late = ["many", "few"].map(|class| metrics.slo_turns(class).1);
    assert_eq!(late, [8, 1]);
    let excess = ["many", "few"].map(|class| tail_excess(&metrics, class, "w"));
    assert_eq!(excess, [Some(1.0), Some(16.0)]);
}

#[test]
fn a_worker_that_left_takes_its_tail_excess_along() {
    let metrics = Metrics::new().unwrap();
    let excess = || ["leaves", "stays"].map(|worker| tail_excess(&metrics, "default", worker));
    for worker in ["leaves", "stays"] {
        metrics.judged("default", worker, Millis(500.0));
    }
    assert_eq!(excess(), [Some(0.5), Some(0.5)]);
    metrics.left("leaves");
    assert_eq!(excess(), [None, Some(0.5)]);
    metrics.judged("default", "leaves", Millis(125.0));
    assert_eq!(excess(), [Some(0.125), Some(0.5)], "it begins anew");
}
