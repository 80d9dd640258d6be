use discovery::{DiscoveryObserver, DiscoverySource, SourceState};

use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, of};
use super::{Metrics, clamp};

const SOURCE: Label = of("source", &["kubernetes", "dns", "file"]);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_discovery_up",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[SOURCE],
        help: "1 if the source's last query succeeded, 0 if it failed or has not completed yet; absent if the source is not configured.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_heard_timestamp_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[SOURCE],
        help: "Unix time of the source's last successful response, changed or not.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_workers",
        kind: Kind::Gauge,
        unit: "workers",
        labels: &[SOURCE, of("state", &["ready", "not_ready", "refused"])],
        help: "Workers that the source lists, by the readiness it reports, and those that were refused.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_failures_total",
        kind: Kind::Counter,
        unit: "failures",
        labels: &[SOURCE],
        help: "Failed queries of the source, and invalid responses.",
        gen_ai: None,
    },
];

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
            up: metrics.labelled("tailroute_discovery_up")?,
            heard: metrics.labelled("tailroute_discovery_heard_timestamp_seconds")?,
            workers: metrics.labelled("tailroute_discovery_workers")?,
            failures: metrics.labelled("tailroute_discovery_failures_total")?,
        })
    }

    pub(super) fn set(&self, states: &[SourceState]) {
        for found in states {
            let source = found.source.as_str();
            let up = found.failure.is_none() && found.heard_at_unix_s.is_some();
            self.up.set(&[source], up.into());
            let heard = found.heard_at_unix_s.unwrap_or_default();
            self.heard.set(&[source], clamp(heard));
            for (state, count) in [
                ("ready", found.ready),
                ("not_ready", found.named - found.ready),
                ("refused", found.refused.total),
            ] {
                self.workers.set(&[source, state], clamp(count as u64));
            }
            // Exposed as zero before the first.
            self.failures.with_label_values(&[source]);
        }
    }
}

struct Failures(Labelled<Counter>);

impl DiscoveryObserver for Failures {
    fn failed(&self, source: DiscoverySource) {
        self.0.inc(&[source.as_str()]);
    }
}

impl Metrics {
    /// Returns an observer that counts the failures of discovery sources.
    pub fn discovery_observer(&self) -> impl DiscoveryObserver + use<> {
        Failures(self.discovery.failures.clone())
    }
}
