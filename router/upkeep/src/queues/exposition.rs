//! Reads figures from a metrics page of an engine. An endpoint with data-parallel ranks lists its figures once per
//! rank, labelled `engine` by vLLM and `dp_rank` by SGLang. Within a rank SGLang may repeat them for every process
//! (`tp_rank`, `pp_rank`) and list every priority beside the sum of all, so the largest is used.

use std::collections::BTreeMap;

use policy::exposition::{MetricSample, samples};

/// Largest number of ranks; a page with more is ignored.
const MOST_RANKS: usize = 1_024;
/// Largest figure accepted: no engine counts further, and sums of these are exact.
const LARGEST: f64 = 1e15;

/// Returns the figure of each name, of one rank or summed over all. `None` where the page lacks it.
pub(super) fn figures<const N: usize>(page: &str, names: [&str; N], rank: Option<u32>) -> [Option<f64>; N] {
    let mut found: [BTreeMap<Option<u32>, f64>; N] = std::array::from_fn(|_| BTreeMap::new());
    for line in page.lines() {
        for (name, ranks) in names.iter().zip(&mut found) {
            let Some(sample) = MetricSample::parse(line, name).filter(is_plausible) else {
                continue;
            };
            let largest = ranks.entry(rank_of(&sample)).or_insert(sample.value);
            *largest = largest.max(sample.value);
            if ranks.len() > MOST_RANKS {
                return [None; N];
            }
        }
    }
    found.map(|ranks| match rank {
        None => ranks.into_values().reduce(|a, b| a + b),
        Some(_) => ranks.get(&rank).copied(),
    })
}

/// Returns whether the samples of this name and label value are above 0, of one rank or of all; `None` if there are no
/// samples.
pub(super) fn flag(page: &str, name: &str, label: [&str; 2], rank: Option<u32>) -> Option<bool> {
    let [label, value] = label;
    samples(page, name)
        .filter(is_plausible)
        .filter(|sample| sample.label(label) == Some(value))
        .filter(|sample| rank.is_none() || rank_of(sample) == rank)
        .map(|sample| sample.value > 0.0)
        .reduce(|one, other| one && other)
}

/// Returns the data-parallel rank that a sample is labelled with.
pub(crate) fn rank_of(sample: &MetricSample<'_>) -> Option<u32> {
    let label = sample.label("engine").or_else(|| sample.label("dp_rank"));
    label?.parse().ok()
}

fn is_plausible(sample: &MetricSample<'_>) -> bool {
    (0.0..=LARGEST).contains(&sample.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_ranks_are_summed_and_longer_names_are_others() {
        let page = "a{engine=\"0\"} 2\na{engine=\"1\",x=\"}{\\\" \"} 3.5 1700000000\nab 7\na_bucket{le=\"1\"} 9\n# a 5\na NaN\n\
            a -1\na x\na{engine=\"2\n";
        assert_eq!(
            figures(page, ["a", "ab", "c"], None),
            [Some(5.5), Some(7.0), None]
        );
    }

    #[test]
    fn a_rank_has_its_own_and_what_is_told_of_all_together_is_nobodys() {
        let page = "a{x=\"engine=\",engine=\"1\"} 3\na{dp_rank=\"12\"} 4\nb 9\n";
        assert_eq!(figures(page, ["a", "b"], Some(1)), [Some(3.0), None]);
        assert_eq!(figures(page, ["a", "b"], Some(12)), [Some(4.0), None]);
        assert_eq!(figures(page, ["a", "b"], Some(2)), [None, None]);
    }

    #[test]
    fn a_page_of_more_ranks_than_an_endpoint_has_tells_nothing_and_is_not_read_to_its_end() {
        let page = |ranks: usize| -> String {
            let line = |rank| format!("a{{engine=\"{rank}\"}} 1\n");
            (0..ranks).map(line).collect()
        };
        assert_eq!(figures(&page(MOST_RANKS), ["a"], None), [Some(MOST_RANKS as f64)]);
        assert_eq!(figures(&page(MOST_RANKS + 1), ["a"], None), [None]);
        assert_eq!(figures(&page(MOST_RANKS + 1), ["a"], Some(0)), [None]);
    }

    #[test]
    fn a_figure_that_no_engine_counts_to_is_passed_over() {
        let page = "a 1e300\na 7\nb 1e16\nc inf\n";
        assert_eq!(figures(page, ["a", "b", "c"], None), [Some(7.0), None, None]);
    }

    #[test]
    fn processes_and_priorities_of_one_rank_are_one_queue() {
        let page = "q{tp_rank=\"0\",priority=\"\"} 5\nq{tp_rank=\"0\",priority=\"1\"} 3\nq{tp_rank=\"1\",priority=\"\"} 5\n";
        assert_eq!(figures(page, ["q"], None), [Some(5.0)]);
        assert_eq!(figures("q 1e1\nq 1e1\n", ["q"], None), [Some(10.0)]);
    }
}
