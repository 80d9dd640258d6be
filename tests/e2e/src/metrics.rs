//! Parses the router's metrics page.

use std::collections::BTreeMap;

use policy::exposition::MetricSample;

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
    /// Parses Prometheus's text format. Escapes in labels are not resolved.
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
    let (name, _) = line.split_once(['{', ' ']).expect("a name");
    let sample = MetricSample::parse(line, name).expect("a sample");
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Sample {
        name: name.to_owned(),
        labels: sample.labels().map(owned).collect(),
        value: sample.value,
    }
}
