//! Creates the metrics of a table and registers them.

use parking_lot::Mutex;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::labelled::{Labelled, Made, Workers};
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

    /// Creates and registers a metric. Fails unless the table has it with this type, or if it exists already.
    pub(super) fn labelled<M: Made>(&self, name: &'static str) -> Result<Labelled<M>, MetricError> {
        let mut specs = self.table.iter().flat_map(|(_, specs)| *specs);
        let spec: &'static Spec = specs
            .find(|spec| spec.name == name)
            .ok_or(MetricError::Unknown(name))?;
        let is_it = match M::TYPE {
            MetricType::Counter => spec.kind == Kind::Counter,
            MetricType::Gauge => spec.kind == Kind::Gauge,
            _ => matches!(spec.kind, Kind::Histogram(_)),
        };
        if !is_it {
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

    /// Creates and registers a metric without labels. Fails like [`Registrar::labelled`].
    pub(super) fn single<M: Made>(&self, name: &'static str) -> Result<M, MetricError> {
        Ok(self.labelled(name)?.with_label_values(&[]))
    }
}
