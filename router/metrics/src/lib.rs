//! Every metric of the router. A file has the rows of its metrics, their handles and what sets them; all rows together
//! are one [`table`], which is also docs/metrics.md.
//!
//! [`spec`] is the type of a row. [`labelled`] keeps labels within their bounds, [`exposition`] writes the page, and
//! [`document`] the reference. The library is `prometheus_client`, Prometheus's own: `prometheus` has no exemplars and
//! no OpenMetrics.

mod admin;
mod admission;
mod bus;
mod caches;
mod capture;
mod discovery;
mod document;
mod exposition;
mod failures;
mod gen_ai;
mod index;
mod labelled;
mod page;
mod picker;
mod process;
mod registrar;
mod requests;
pub mod spec;
pub mod table;
mod tail;
#[cfg(test)]
mod tests;
mod traces;
mod workers;

use std::fmt;

use prometheus_client::registry::Registry;

use self::admin::AdminMetrics;
use self::admission::AdmissionMetrics;
use self::bus::Replicas;
pub use self::bus::{BusCounters, BusGauges};
use self::caches::Caches;
pub use self::caches::HIT_STAGES;
use self::discovery::Discovery;
pub use self::document::markdown;
pub use self::exposition::Format;
use self::failures::FailureMetrics;
pub use self::gen_ai::Answered;
use self::gen_ai::GenAi;
use self::index::Index;
use self::labelled::Workers;
pub use self::labelled::{Counter, Labelled, Made};
pub use self::page::{AdmissionGauges, Gauges, WorkerGauges};
pub use self::picker::Open;
use self::picker::Picker;
use self::process::Process;
pub use self::registrar::MetricError;
use self::registrar::Registrar;
use self::requests::Requests;
use self::table::TABLE;
use self::tail::TailMetrics;
pub use self::traces::TraceCounters;
use self::workers::FleetMetrics;

/// All metrics of the router, in one registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    workers: Workers,
    requests: Requests,
    gen_ai: GenAi,
    admin: AdminMetrics,
    admission: AdmissionMetrics,
    caches: Caches,
    index: Index,
    discovery: Discovery,
    failures: FailureMetrics,
    fleet: FleetMetrics,
    tail: TailMetrics,
    picker: Picker,
    traces: TraceCounters,
    replicas: Replicas,
    process: Process,
}

impl Metrics {
    /// Creates all metrics at zero. Fails if the table and the metrics differ.
    pub fn new() -> Result<Self, MetricError> {
        let metrics = Registrar::new(TABLE);
        let (requests, gen_ai) = (Requests::new(&metrics)?, GenAi::new(&metrics)?);
        let (admission, caches) = (AdmissionMetrics::new(&metrics)?, Caches::new(&metrics)?);
        let (admin, index) = (AdminMetrics::new(&metrics)?, Index::new(&metrics)?);
        let (failures, fleet, tail) = (
            FailureMetrics::new(&metrics)?,
            FleetMetrics::new(&metrics)?,
            TailMetrics::new(&metrics)?,
        );
        let traces = TraceCounters::new(&metrics)?;
        let discovery = Discovery::new(&metrics)?;
        let replicas = Replicas::new(&metrics)?;
        let picker = Picker::new(&metrics)?;
        let process = Process::new(&metrics)?;
        let (registry, made, workers) = metrics.done();
        // The reverse, a metric that is not in the table, fails when it is created.
        let mut all = TABLE.iter().flat_map(|(_, specs)| *specs);
        if let Some(spec) = all.find(|spec| !made.contains(&spec.name)) {
            return Err(MetricError::Unknown(spec.name));
        }
        Ok(Self {
            registry,
            workers,
            requests,
            gen_ai,
            admin,
            admission,
            caches,
            index,
            discovery,
            failures,
            fleet,
            tail,
            picker,
            traces,
            replicas,
            process,
        })
    }

    /// Gives workers series of their own while there is room, in order.
    pub fn name_workers<'a>(&self, workers: impl IntoIterator<Item = &'a str>) {
        for worker in workers {
            self.workers.admit(worker);
        }
    }

    /// Sets the commit that the router is built from; empty if it is unknown.
    pub fn name_build(&self, commit: &str) {
        self.process.name_build(commit);
    }

    /// Removes the series of a worker that left the fleet, which frees room for another one.
    pub fn left(&self, worker: &str) {
        self.workers.left(worker);
        self.caches.left(worker);
    }

    /// Renders the page with these gauges. Fails if a metric cannot be written.
    pub fn render(&self, gauges: &Gauges, format: Format) -> Result<String, fmt::Error> {
        let shown = &self.workers;
        self.fleet.set(gauges, shown);
        self.requests.set(gauges, shown);
        self.caches.set(gauges, shown);
        self.index.set(gauges);
        self.tail.set(gauges, shown);
        self.set_admission(gauges.admission);
        self.discovery.set(&gauges.discovery);
        self.set_admin(gauges.policy_revision, gauges.audit_failures);
        self.replicas.set(gauges.bus.as_ref());
        self.process.set(gauges.log_dropped);
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            self.breaker(&worker.name, worker.breaker);
        }
        format.write(&self.registry)
    }
}

fn yes_no(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
