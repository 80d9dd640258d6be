//! The state that every part of the router shares: configuration, workers, what was learned, the policy in force.
//!
//! A function takes the part that it touches: [`Routing`], [`Operations`] or [`Transport`]; [`State`] if it needs two.
//! A part of the router holds an [`Arc`] of it beside what is its own (`proxy`, `replicas`, `admin`). Nothing here
//! knows any of them.

mod announce;
pub mod control;
mod decisions;
mod fleet_record;
mod gauges;
mod health;
pub mod idle;
mod learned;
mod live;
mod live_policy;
mod members;
mod operations;
pub mod overload;
mod pool_timer;
mod routing;
pub mod snapshot;
pub mod supervise;
mod transport;
pub mod turn_reports;

use std::sync::Arc;

use config::Config;
use metrics::{MetricError, Metrics};
use operator::AuditError;
use tailroute_http::byte_reservation::ByteReservation;
use tailroute_http::tls::TlsError;

use self::idle::Idle;
pub use self::live::Live;
pub use self::operations::Operations;
pub use self::routing::Routing;
pub use self::transport::{MAX_COPIED_BYTES, Transport};

/// The state that every part of the router shares.
#[derive(Debug)]
pub struct State {
    /// Configuration at the start. Values that a reload replaces are in [`Routing::live`], [`Routing::policy`],
    /// [`Operations::operator`] and [`Transport::tls`].
    pub config: Arc<Config>,
    pub routing: Routing,
    pub operations: Operations,
    pub transport: Transport,
}

/// Reason why the state cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A metric is missing from the table of metrics.
    #[error("the metrics cannot be registered")]
    Metrics(#[from] MetricError),
    /// The certificates are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl State {
    /// Creates the state of a router that has served nothing yet.
    /// Fails if the metrics cannot be registered, the certificates are invalid, or the audit log cannot be written.
    pub fn new(config: Config) -> Result<Arc<Self>, StateError> {
        let (config, metrics) = (Arc::new(config), Metrics::new()?);
        let idle = Arc::<Idle>::default();
        Ok(Arc::new(Self {
            transport: Transport::new(&config, &idle)?,
            operations: Operations::new(&config, &metrics, idle)?,
            routing: Routing::new(Arc::clone(&config), metrics),
            config,
        }))
    }

    /// Returns an empty reservation of memory for a request that is being read, within `limits.max_unread_bytes`.
    #[must_use]
    pub fn request_reservation(&self) -> ByteReservation {
        let max = self.routing.live().limits.max_unread_bytes.get();
        self.transport.request_reservation(max)
    }
}
