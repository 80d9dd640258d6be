//! Reads the counters of a sample from the metrics page.

use std::collections::BTreeMap;

use super::{Counters, Sample};

/// Returns the counters of a metrics page that the history keeps, each summed over its other labels.
pub(super) fn counters(page: &str) -> Sample {
    let mut sample = Sample::default();
    for (name, labels, value) in series(page) {
        let label = |wanted: &str| value_of(labels, wanted).unwrap_or_default();
        let (counters, key) = match name {
            "tailroute_time_to_first_token_seconds_bucket" => (&mut sample.ttft, label("le")),
            "tailroute_slo_turns_total" => {
                (&mut sample.turns, format!("{} {}", label("met"), label("class")))
            }
            "tailroute_slo_violations_total" => (&mut sample.causes, label("cause")),
            "tailroute_requests_total" => (&mut sample.requests, label("outcome")),
            "tailroute_prompt_tokens_total" => (&mut sample.prompt, label("kind")),
            "tailroute_prompt_cache_tokens_total" => (&mut sample.hits, label("stage")),
            _ => continue,
        };
        add(counters, key, value);
    }
    sample
}

/// Reads the counters of each worker.
pub(super) fn of_workers(page: &str) -> BTreeMap<String, Counters> {
    let mut workers: BTreeMap<String, Counters> = BTreeMap::new();
    for (name, labels, value) in series(page) {
        if !matches!(
            name,
            "tailroute_time_to_first_token_seconds_bucket"
                | "tailroute_prompt_tokens_total"
                | "tailroute_worker_turns_total"
                | "tailroute_worker_failures_total"
        ) {
            continue;
        }
        let (Some(worker), Ok(value)) = (value_of(labels, "worker"), value.parse()) else {
            continue;
        };
        let counters = workers.entry(worker).or_default();
        match name {
            // The page has the buckets of a histogram in ascending order.
            "tailroute_time_to_first_token_seconds_bucket" => counters.ttft.push(value),
            "tailroute_worker_turns_total" => counters.turns = value,
            "tailroute_worker_failures_total" => counters.failures = value,
            _ => match value_of(labels, "kind").as_deref() {
                Some("all") => counters.prompt = value,
                Some("predicted_cached") => counters.predicted_cached = value,
                Some("reported_cached") => counters.reported_cached = value,
                _ => {}
            },
        }
    }
    workers
}

/// The series that have labels: name, labels, value.
fn series(page: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    page.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{')?;
        Some((name, labels, value))
    })
}

fn add(counters: &mut BTreeMap<String, u64>, key: String, value: &str) {
    if let Ok(value) = value.parse::<u64>() {
        *counters.entry(key).or_default() += value;
    }
}

/// Returns the unescaped value of a label.
fn value_of(labels: &str, wanted: &str) -> Option<String> {
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, letter) => value.push(letter),
            }
        };
        if name.trim_start_matches(',') == wanted {
            return Some(value);
        }
        rest = &after[end + 1..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_workers_and_endpoints() {
        let page = "\
# HELP tailroute_requests_total Requests.
tailroute_requests_total{endpoint=\"chat\",outcome=\"ok\"} 3
tailroute_requests_total{endpoint=\"embeddings\",outcome=\"ok\"} 4
tailroute_requests_total{endpoint=\"chat\",outcome=\"client_error\"} 1
tailroute_time_to_first_token_seconds_bucket{worker=\"a\",le=\"0.1\"} 1
tailroute_time_to_first_token_seconds_bucket{worker=\"b\",le=\"0.1\"} 2
tailroute_time_to_first_token_seconds_bucket{worker=\"b\",le=\"+Inf\"} 5
tailroute_slo_turns_total{class=\"odd \\\"name\\\"\",met=\"false\"} 2
tailroute_slo_violations_total{class=\"default\",cause=\"queue\"} 2
tailroute_workers{state=\"ready\"} 2
up 1
";
        let sample = counters(page);
        let map = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), *value))
                .collect()
        };
        assert_eq!(sample.requests, map(&[("ok", 7), ("client_error", 1)]));
        assert_eq!(sample.ttft, map(&[("0.1", 3), ("+Inf", 5)]));
        assert_eq!(sample.turns, map(&[("false odd \"name\"", 2)]));
        assert_eq!(sample.causes, map(&[("queue", 2)]));
    }

    #[test]
    fn counters_of_workers_are_read_apart() {
        let page = "\
tailroute_time_to_first_token_seconds_bucket{worker=\"a\",le=\"0.1\"} 1
tailroute_time_to_first_token_seconds_bucket{worker=\"a\",le=\"10\"} 4
tailroute_time_to_first_token_seconds_bucket{worker=\"a\",le=\"+Inf\"} 5
tailroute_time_to_first_token_seconds_sum{worker=\"a\"} 31.5
tailroute_prompt_tokens_total{kind=\"all\",worker=\"a\"} 900
tailroute_prompt_tokens_total{kind=\"predicted_cached\",worker=\"a\"} 400
tailroute_prompt_tokens_total{kind=\"reported_cached\",worker=\"a\"} 300
tailroute_worker_turns_total{worker=\"a\"} 6
tailroute_worker_turns_total{worker=\"b\"} 2
tailroute_worker_failures_total{worker=\"b\"} 1
tailroute_requests_total{endpoint=\"chat\",outcome=\"ok\"} 3
";
        let a = Counters {
            turns: 6,
            failures: 0,
            prompt: 900,
            predicted_cached: 400,
            reported_cached: 300,
            ttft: vec![1, 4, 5],
        };
        let b = Counters {
            turns: 2,
            failures: 1,
            ..Counters::default()
        };
        assert_eq!(
            of_workers(page),
            BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)])
        );
    }

    proptest::proptest! {
        #[test]
        fn any_page_is_read_without_a_panic(page in "(tailroute_requests_total\\{.*\\} .*\n|.*\n){0,5}") {
            let _ = (counters(&page), of_workers(&page));
        }
    }
}
