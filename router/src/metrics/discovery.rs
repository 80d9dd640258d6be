//! What finds workers.

use discovery::{Observer, Source, SourceState};

use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::{Metrics, clamp};

/// How it is with each source.
#[derive(Debug)]
pub(super) struct Discovery {
    up: Labelled<IntGauge>,
    heard: Labelled<IntGauge>,
    workers: Labelled<IntGauge>,
    failures: Labelled<Counter>,
}

impl Discovery {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            up: metrics.gauge("tailroute_discovery_up")?,
            heard: metrics.gauge("tailroute_discovery_heard_timestamp_seconds")?,
            workers: metrics.gauge("tailroute_discovery_workers")?,
            failures: metrics.counter("tailroute_discovery_failures_total")?,
        })
    }

    /// Sets the gauges.
    pub(super) fn set(&self, standings: &[SourceState]) {
        for standing in standings {
            let source = standing.source.as_str();
            let up = standing.failure.is_none() && standing.heard_at_unix_s.is_some();
            self.up.with_label_values(&[source]).set(up.into());
            let heard = standing.heard_at_unix_s.unwrap_or_default();
            self.heard.with_label_values(&[source]).set(clamp(heard));
            for (state, count) in [
                ("ready", standing.ready),
                ("not_ready", standing.named - standing.ready),
                ("refused", standing.refused.total),
            ] {
                self.workers
                    .with_label_values(&[source, state])
                    .set(clamp(count as u64));
            }
            // Shown as zero before the first.
            self.failures.with_label_values(&[source]);
        }
    }
}

/// Counts the failures of sources.
struct Failures(Labelled<Counter>);

impl Observer for Failures {
    fn failed(&self, source: Source) {
        self.0.with_label_values(&[source.as_str()]).inc();
    }
}

impl Metrics {
    /// What counts the failures of sources.
    pub fn discovery_observer(&self) -> impl Observer + use<> {
        Failures(self.discovery.failures.clone())
    }
}
