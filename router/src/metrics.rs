//! Every metric of the router. The [`table`] defines them and generates docs/metrics.md; the files below set them.
//!
//! | file | metrics |
//! |---|---|
//! | [`requests`] | requests and turns |
//! | [`gen_ai`] | the same under the names of OpenTelemetry's conventions |
//! | [`admin`] | administration |
//! | [`admission`] | authentication, limits and the queue |
//! | [`caches`] | predicted and reported cached tokens, and cache events |
//! | [`discovery`] | sources of workers |
//! | [`failures`] | retries, breakers, hedges, differing counts |
//! | [`picker`] | requests of gateways |
//! | [`bus`] | other replicas |
//! | [`process`] | tasks and the log |
//! | [`page`] | gauges that are set at each scrape |
//!
//! [`labelled`] bounds labels, [`exposition`] writes the page, and [`document`] the reference. The library is
//! `prometheus_client`, since `prometheus` has no exemplars and no OpenMetrics.

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
mod labelled;
mod page;
mod picker;
mod process;
mod registrar;
mod requests;
pub mod table;
#[cfg(test)]
mod tests;
mod traces;

use std::fmt;

use prometheus_client::registry::Registry;

use self::admin::Admin;
use self::admission::Admission;
use self::bus::Replicas;
pub use self::bus::{BusCounters, BusGauges};
use self::caches::Caches;
use self::discovery::Discovery;
pub use self::document::markdown;
pub use self::exposition::Format;
use self::failures::Failures;
pub use self::gen_ai::Answered;
use self::gen_ai::GenAi;
use self::labelled::Workers;
pub use self::labelled::{Counter, Labelled, Made};
use self::page::Page;
pub use self::page::{Gauges, WorkerGauges};
pub use self::picker::Open;
use self::picker::Picker;
use self::process::Process;
pub use self::registrar::MetricError;
use self::registrar::Registrar;
use self::requests::Requests;
pub use self::traces::TraceCounters;

/// All metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    workers: Workers,
    requests: Requests,
    gen_ai: GenAi,
    admin: Admin,
    admission: Admission,
    caches: Caches,
    discovery: Discovery,
    failures: Failures,
    page: Page,
    picker: Picker,
    traces: TraceCounters,
    replicas: Replicas,
    process: Process,
}

impl Metrics {
    /// Creates all metrics at zero.
    ///
    /// # Errors
    /// Fails if the table and the metrics differ.
    pub fn new() -> Result<Self, MetricError> {
        let metrics = Registrar::default();
        let (requests, gen_ai) = (Requests::new(&metrics)?, GenAi::new(&metrics)?);
        let (admission, caches) = (Admission::new(&metrics)?, Caches::new(&metrics)?);
        let admin = Admin::new(&metrics)?;
        let (failures, page) = (Failures::new(&metrics)?, Page::new(&metrics)?);
        let traces = TraceCounters::new(&metrics)?;
        let discovery = Discovery::new(&metrics)?;
        let replicas = Replicas::new(&metrics)?;
        let picker = Picker::new(&metrics)?;
        let process = Process::new(&metrics)?;
        let (registry, made, workers) = metrics.done();
        // The reverse, a metric that is not in the table, fails when it is created.
        let mut all = table::TABLE.iter().flat_map(|(_, specs)| *specs);
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
            discovery,
            failures,
            page,
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

    /// Removes the series of a worker that left the fleet, which frees room for another one.
    pub fn left(&self, worker: &str) {
        self.workers.left(worker);
    }

    /// Renders the page with these gauges.
    ///
    /// # Errors
    /// Fails if a metric cannot be written.
    pub fn render(&self, gauges: &Gauges, format: Format) -> Result<String, fmt::Error> {
        self.page.set(gauges, &self.workers);
        self.set_admission(gauges.admission);
        self.discovery.set(&gauges.discovery);
        self.set_admin(gauges.policy_revision, gauges.audit_failures);
        self.replicas.set(gauges.bus.as_ref());
        self.process.set_dropped(gauges.log_dropped);
        self.requests.show_all();
        let shown = |worker: &&WorkerGauges| self.workers.admit(&worker.name);
        for worker in gauges.workers.iter().filter(shown) {
            self.requests.show(&worker.name);
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
