//! Samples of a metrics page in Prometheus's text format: `name{label="value",…} value [timestamp]`. A line of another
//! form is skipped, since the page is another program's.

const SEPARATORS: [char; 2] = [',', ' '];

/// One sample of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricSample<'a> {
    labels: &'a str,
    /// The value, which may be infinite or no number.
    pub value: f64,
}

impl<'a> MetricSample<'a> {
    /// Parses a line. `None` if it is not a sample of the metric `name`.
    pub fn parse(line: &'a str, name: &str) -> Option<Self> {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => split_labels(rest)?,
            None => ("", rest),
        };
        let value = rest.strip_prefix(' ')?.split_ascii_whitespace().next()?;
        Some(Self {
            labels,
            value: value.parse().ok()?,
        })
    }

    /// Returns the names and values of the labels. Escapes are not resolved.
    pub fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (name, value, after) = first_label(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// Returns the value of a label. Escapes are not resolved.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut labels = self.labels();
        labels.find_map(|(known, value)| (known == name).then_some(value))
    }
}

/// Returns the samples of the metric `name`, in the order of the page.
pub fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = MetricSample<'a>> {
    page.lines()
        .filter_map(move |line| MetricSample::parse(line, name))
}

/// Splits `name="value",…} rest` at the brace; a label's value may contain braces too.
fn split_labels(text: &str) -> Option<(&str, &str)> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(SEPARATORS);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((&text[..text.len() - rest.len()], after));
        }
        (_, _, rest) = first_label(rest)?;
    }
}

/// Returns the name and the value of the first label, and the text after it.
fn first_label(text: &str) -> Option<(&str, &str, &str)> {
    let (name, value) = text.trim_start_matches(SEPARATORS).split_once("=\"")?;
    let end = end_of_value(value)?;
    Some((name, &value[..end], &value[end + 1..]))
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

    fn values(page: &str, name: &str) -> Vec<f64> {
        samples(page, name).map(|sample| sample.value).collect()
    }

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let page =
            "# HELP a x\n# TYPE a gauge\na 2\na{x=\"1\"} 3.5 1700000000\na_total 7\nab{x=\"1\"} 9\nb -1\n";
        assert_eq!(values(page, "a"), [2.0, 3.5]);
        assert_eq!(values(page, "b"), [-1.0]);
        assert_eq!(values(page, "c"), [0.0; 0]);
    }

    #[test]
    fn labels_contain_spaces_braces_and_escaped_quotes() {
        let page = "a{worker=\"w 1\",what=\"}{\\\" =\", k=\"\\\\\",} 3\n";
        let labels: Vec<_> = samples(page, "a").flat_map(|sample| sample.labels()).collect();
        assert_eq!(labels, [("worker", "w 1"), ("what", "}{\\\" ="), ("k", "\\\\")]);
        let sample = samples(page, "a").next().unwrap();
        assert_eq!((sample.label("worker"), sample.label("hat")), (Some("w 1"), None));
    }

    #[test]
    fn an_exemplar_is_no_label() {
        let page = "a{le=\"0.1\"} 3 # {trace_id=\"x\"} 0.05 1.5\n";
        let sample = samples(page, "a").next().unwrap();
        assert_eq!(
            (sample.value, sample.label("le"), sample.label("trace_id")),
            (3.0, Some("0.1"), None)
        );
    }

    #[test]
    fn other_lines_are_skipped() {
        for line in [
            "a",
            "a x",
            "a{",
            "a{x=\"1",
            "a{x=\"1\"",
            "a{x=\"1\"}",
            "a{x=\"1\"}2",
            "a{x} 1",
        ] {
            assert_eq!(MetricSample::parse(line, "a"), None, "{line}");
        }
    }
}
