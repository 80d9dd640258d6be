//! Reads single samples of a metrics page.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MetricSample<'a> {
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> MetricSample<'a> {
    /// Returns the value of a label. Values with escaped quotes are cut there.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = after.split_once('"')?;
            if key.trim_start_matches(',').trim() == name {
                return Some(value);
            }
            rest = after;
        }
    }
}

pub(super) fn samples<'a>(page: &'a str, metric: &'a str) -> impl Iterator<Item = MetricSample<'a>> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(metric)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value = value.split_whitespace().next()?.parse().ok()?;
        Some(MetricSample { labels, value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_with_their_labels() {
        let page = "# HELP a_total x\na_total{worker=\"w 1\",what=\"gap\"} 3\na_total_more{worker=\"w\"} 9\nb 1.5 17\nb_x 2\n";
        let found: Vec<_> = samples(page, "a_total").collect();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].label("what"), found[0].label("worker"), found[0].value),
            (Some("gap"), Some("w 1"), 3.0)
        );
        assert_eq!(found[0].label("hat"), None);
        assert_eq!(
            samples(page, "b").map(|sample| sample.value).collect::<Vec<_>>(),
            [1.5]
        );
    }
}
