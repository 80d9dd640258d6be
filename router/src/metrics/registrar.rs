//! Makes metrics, and registers each as it is made.

use prometheus::core::Collector;
use prometheus::{
    Error, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

/// Bucket bounds of times to first token, in seconds: from a cached short prompt to a minute in a queue.
const SECONDS: [f64; 16] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];
/// Bucket bounds of tokens.
const TOKENS: [f64; 8] = [0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

/// A registry that is being filled. Each call fails if there is a metric of that name.
#[derive(Default)]
pub(super) struct Registrar(Registry);

impl Registrar {
    /// The registry, filled.
    pub(super) fn done(self) -> Registry {
        self.0
    }

    fn add<M: Collector + Clone + 'static>(&self, metric: M) -> Result<M, Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn plain_counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.add(IntCounter::new(name, help)?)
    }

    /// Whole numbers.
    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Real numbers.
    pub(super) fn real(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
        self.add(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// One real number.
    pub(super) fn single(&self, name: &str, help: &str) -> Result<Gauge, Error> {
        self.add(Gauge::new(name, help)?)
    }

    /// One whole number.
    pub(super) fn count(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.add(IntGauge::new(name, help)?)
    }

    /// A histogram of times.
    pub(super) fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, Error> {
        self.histogram(name, help, &SECONDS, labels)
    }

    /// A histogram of tokens.
    pub(super) fn tokens(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, Error> {
        self.histogram(name, help, &TOKENS, labels)
    }

    fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> Result<HistogramVec, Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(options, labels)?)
    }
}
