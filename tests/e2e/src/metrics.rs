//! Parses the router's metrics page.

use std::collections::BTreeMap;

/// The samples of a metrics page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Page {
    /// Parses Prometheus's text format. Labels must contain neither commas nor quotes.
    ///
    /// # Panics
    /// If a line does not parse.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(sample)
            .collect();
        Self { samples }
    }

    /// Returns the sum of all samples with this name and these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter(|sample| {
                labels
                    .iter()
                    .all(|(label, value)| sample.labels.get(*label).is_some_and(|given| given == value))
            })
            .map(|sample| sample.value)
            .sum()
    }

    /// Returns all samples.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let labels = labels
        .trim_end_matches('}')
        .split(',')
        .filter(|label| !label.is_empty())
        .map(|label| {
            let (name, value) = label.split_once('=').expect("a label's value");
            (name.to_owned(), value.trim_matches('"').to_owned())
        })
        .collect();
    Sample {
        name: name.to_owned(),
        labels,
        value: value.parse().unwrap(),
    }
}
