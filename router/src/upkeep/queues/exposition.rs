//! Sums out of a page in Prometheus's text format: `name{labels} value [timestamp]`.
//!
//! Only what is asked for is read; a line that is something else is passed over, since the page is another program's.

/// For each name, the sum over its samples; `None` where there is none.
pub(super) fn sums<const N: usize>(page: &str, names: [&str; N]) -> [Option<f64>; N] {
    let mut sums = [None; N];
    for line in page.lines() {
        for (name, sum) in names.iter().zip(&mut sums) {
            if let Some(value) = line.strip_prefix(name).and_then(value) {
                *sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
    }
    sums
}

/// The value after a name: nothing but labels, if any, may stand between.
fn value(rest: &str) -> Option<f64> {
    let rest = match rest.strip_prefix('{') {
        // Values of labels may hold braces, but hardly blanks after the last of them.
        Some(labels) => labels.rsplit_once('}')?.1,
        None => rest,
    };
    let value: f64 = rest
        .strip_prefix(' ')?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_are_summed_and_longer_names_are_others() {
        let page = "a{x=\"1\"} 2\na{x=\"}{\"} 3.5 1700000000\na 1e1\nab 7\na_bucket{le=\"1\"} 9\n# a 5\na NaN\na -1\na x\n";
        assert_eq!(sums(page, ["a", "ab", "c"]), [Some(15.5), Some(7.0), None]);
    }
}
