//! Creates the metrics of a table and registers them.

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::labelled::{Counter, Gauge, Histogram, IntGauge, Labelled, Made, RealCounter, Workers};
use super::spec::{Kind, Spec, Table};

/// A metric that cannot be created: a programming error, which no configuration can cause.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MetricError {
    /// The metric is not in the table.
    #[error("`{0}` is not in the table of metrics")]
    Unknown(&'static str),
    /// The metric is in the table with another type.
    #[error("`{0}` is in the table of metrics as something else")]
    OtherKind(&'static str),
    /// The metric exists already.
    #[error("`{0}` is made twice")]
    Twice(&'static str),
}

pub(super) struct Registrar {
    table: Table,
    registry: Mutex<Registry>,
    made: Mutex<Vec<&'static str>>,
    workers: Workers,
}

impl Registrar {
    pub(super) fn new(table: Table) -> Self {
        Self {
            table,
            registry: Mutex::default(),
            made: Mutex::default(),
            workers: Workers::default(),
        }
    }

    /// Returns the registry, the names in it, and the workers that have series of their own.
    pub(super) fn done(self) -> (Registry, Vec<&'static str>, Workers) {
        (self.registry.into_inner(), self.made.into_inner(), self.workers)
    }

    fn add<M: Made>(
        &self,
        name: &'static str,
        is_it: impl Fn(Kind) -> bool,
    ) -> Result<Labelled<M>, MetricError> {
        let mut specs = self.table.iter().flat_map(|(_, specs)| *specs);
        let spec: &'static Spec = specs
            .find(|spec| spec.name == name)
            .ok_or(MetricError::Unknown(name))?;
        if !is_it(spec.kind) {
            return Err(MetricError::OtherKind(name));
        }
        let mut made = self.made.lock();
        if made.contains(&name) {
            return Err(MetricError::Twice(name));
        }
        made.push(name);
        let metric = Labelled::<M>::new(spec, self.workers.clone());
        if spec.labels.is_empty() {
            // Exposed from the start.
            drop(metric.with_label_values(&[]));
        }
        // The library adds a counter's suffix and the help's full stop.
        let (name, help) = (name.trim_end_matches("_total"), spec.help.trim_end_matches('.'));
        self.registry.lock().register(name, help, metric.clone());
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &'static str) -> Result<Labelled<Counter>, MetricError> {
        self.add(name, |kind| kind == Kind::Counter)
    }

    pub(super) fn gauge(&self, name: &'static str) -> Result<Labelled<IntGauge>, MetricError> {
        self.add(name, |kind| kind == Kind::Gauge)
    }

    pub(super) fn real(&self, name: &'static str) -> Result<Labelled<Gauge>, MetricError> {
        self.add(name, |kind| kind == Kind::Gauge)
    }

    pub(super) fn histogram(&self, name: &'static str) -> Result<Labelled<Histogram>, MetricError> {
        self.add(name, |kind| matches!(kind, Kind::Histogram(_)))
    }

    pub(super) fn plain_counter(&self, name: &'static str) -> Result<Counter, MetricError> {
        Ok(self.counter(name)?.with_label_values(&[]))
    }

    pub(super) fn real_counter(&self, name: &'static str) -> Result<RealCounter, MetricError> {
        Ok(self
            .add(name, |kind| kind == Kind::Counter)?
            .with_label_values(&[]))
    }

    pub(super) fn count(&self, name: &'static str) -> Result<IntGauge, MetricError> {
        Ok(self.gauge(name)?.with_label_values(&[]))
    }

    pub(super) fn single(&self, name: &'static str) -> Result<Gauge, MetricError> {
        Ok(self.real(name)?.with_label_values(&[]))
    }
}
