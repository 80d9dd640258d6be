//! Every metric of the router. Units are in the names; labels are bounded by configuration.
//!
//! | file | metrics |
//! |---|---|
//! | [`requests`] | what the request's way counts |
//! | [`admin`] | what people change |
//! | [`admission`] | who came in and who waited |
//! | [`caches`] | predictions held against reports, and cache events |
//! | [`failures`] | retries, breakers, hedges, counts that do not agree |
//! | [`page`] | gauges, set when the page is asked for |

mod admin;
mod admission;
mod caches;
mod failures;
mod page;
mod registrar;
mod requests;

use prometheus::{Encoder as _, Registry, TextEncoder};

use self::admin::Admin;
use self::admission::Admission;
use self::caches::Caches;
use self::failures::Failures;
use self::page::Page;
pub use self::page::{Gauges, WorkerGauges};
use self::registrar::Registrar;
use self::requests::Requests;

/// The metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Requests,
    admin: Admin,
    admission: Admission,
    caches: Caches,
    failures: Failures,
    page: Page,
}

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// If two of them had the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Registrar::default();
        Ok(Self {
            requests: Requests::new(&metrics)?,
            admin: Admin::new(&metrics)?,
            admission: Admission::new(&metrics)?,
            caches: Caches::new(&metrics)?,
            failures: Failures::new(&metrics)?,
            page: Page::new(&metrics)?,
            registry: metrics.done(),
        })
    }

    /// Prometheus's text format, with these gauges of the moment.
    ///
    /// # Errors
    /// If the encoder fails.
    pub fn render(&self, gauges: &Gauges) -> Result<Vec<u8>, prometheus::Error> {
        self.page.set(gauges);
        self.set_admission(gauges.admission);
        self.set_admin(gauges.policy_revision, gauges.audit_failures);
        for worker in &gauges.workers {
            self.requests.show(&worker.name);
            self.breaker(&worker.name, worker.breaker);
        }
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }
}

fn yes_no(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
