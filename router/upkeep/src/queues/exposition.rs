//! Reads figures from a page in Prometheus's text format: `name{labels} value [timestamp]`. Any line without a
//! requested name is skipped, since the page is another program's. An endpoint with data-parallel ranks lists its
//! figures once per rank, labelled `engine` by vLLM and `dp_rank` by SGLang. Within a rank SGLang may repeat them for
//! every process (`tp_rank`, `pp_rank`) and list every priority beside the sum of all, so the largest is used.

use std::collections::BTreeMap;

const RANK_LABELS: [&str; 2] = ["engine", "dp_rank"];
/// Largest number of ranks; a page with more is ignored.
const MOST_RANKS: usize = 1_024;
/// Largest figure accepted: no engine counts further, and sums of these are exact.
const LARGEST: f64 = 1e15;

/// Returns the figure of each name, of one rank or summed over all. `None` where the page lacks it.
pub(super) fn figures<const N: usize>(page: &str, names: [&str; N], rank: Option<u32>) -> [Option<f64>; N] {
    let mut found: [BTreeMap<Option<u32>, f64>; N] = std::array::from_fn(|_| BTreeMap::new());
    for line in page.lines() {
        for (name, ranks) in names.iter().zip(&mut found) {
            let Some((of, value)) = line.strip_prefix(name).and_then(sample) else {
                continue;
            };
            let largest = ranks.entry(of).or_insert(value);
            *largest = largest.max(value);
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

/// Parses the rank and value after a name, which only labels may separate.
fn sample(rest: &str) -> Option<(Option<u32>, f64)> {
    let (rank, rest) = match rest.strip_prefix('{') {
        Some(labels) => labels_of(labels)?,
        None => (None, rest),
    };
    let value: f64 = rest
        .strip_prefix(' ')?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()?;
    (0.0..=LARGEST).contains(&value).then_some((rank, value))
}

/// Parses labels (`name="value",…}`). Returns the rank, and the text after the labels.
fn labels_of(mut rest: &str) -> Option<(Option<u32>, &str)> {
    let mut rank = None;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((rank, after));
        }
        let (name, value, after) = label(rest)?;
        if RANK_LABELS.contains(&name) {
            rank = value.parse().ok();
        }
        rest = after;
    }
}

fn label(rest: &str) -> Option<(&str, &str, &str)> {
    let (name, value) = rest.split_once("=\"")?;
    let end = end_of_value(value)?;
    Some((name, &value[..end], &value[end + 1..]))
}

/// Returns whether the samples of this name and label value are above 0, of one rank or of all; `None` if there are no
/// samples.
pub(super) fn flag(page: &str, name: &str, label: [&str; 2], rank: Option<u32>) -> Option<bool> {
    let [wanted, value] = label;
    let mut flag = None;
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(name).filter(|rest| rest.starts_with('{')) else {
            continue;
        };
        let (of, [found]) = labelled(line, name, [wanted]).pop()?;
        if found != Some(value) || (rank.is_some() && of != rank) {
            continue;
        }
        let (_, figure) = sample(rest)?;
        flag = Some(flag.unwrap_or(true) && figure > 0.0);
    }
    flag
}

/// Returns the rank and `wanted` labels of up to [`MOST_RANKS`] samples of this name. Escapes are not resolved.
pub(crate) fn labelled<'a, const N: usize>(
    page: &'a str,
    name: &str,
    wanted: [&str; N],
) -> Vec<(Option<u32>, [Option<&'a str>; N])> {
    let labels = page
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let read = |mut rest: &'a str| {
        let (mut rank, mut found) = (None, [None; N]);
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if rest.starts_with('}') {
                return Some((rank, found));
            }
            let (name, value, after) = label(rest)?;
            if RANK_LABELS.contains(&name) {
                rank = value.parse().ok();
            }
            if let Some(at) = wanted.iter().position(|wanted| *wanted == name) {
                found[at] = Some(value);
            }
            rest = after;
        }
    };
    labels.filter_map(read).take(MOST_RANKS).collect()
}

/// Returns the end of a label's value: the first unescaped quote.
fn end_of_value(value: &str) -> Option<usize> {
    let mut escaped = false;
    value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
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
    fn labels_are_read_of_each_rank() {
        let page = "a{x=\"1\",engine=\"0\",y=\"}\"} 1\nab{x=\"9\"} 1\na{y=\"2\"} 1\na 1\na{x=\"7\n";
        let found = [(Some(0), [Some("1"), Some("}")]), (None, [None, Some("2")])];
        assert_eq!(labelled(page, "a", ["x", "y"]), found);
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
