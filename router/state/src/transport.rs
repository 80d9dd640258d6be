//! TLS, the HTTP client and the memory for bytes in transit.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use config::Config;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use tailroute_http::byte_reservation::ByteReservation;
use tailroute_http::tls::{Tls, TlsError};
use tailroute_http::upstream::UpstreamClient;
use tailroute_http::via::Via;

use crate::idle::Idle;
use crate::pool_timer::PoolTimer;

/// Largest number of response bytes held while they pass, over all responses; the first
/// [`UNCOUNTED_BYTES`](protocol::watch::UNCOUNTED_BYTES) of each do not count.
pub const MAX_COPIED_BYTES: usize = 256 << 20;

/// Resources of connections to workers and clients.
#[derive(Debug)]
pub struct Transport {
    pub tls: Tls,
    /// HTTP client for requests to workers, except those that go through the router's own HTTP/1.1 client.
    pub client: UpstreamClient,
    /// Marks requests to workers as forwarded by this router.
    pub via: Via,
    /// Time limit of a control call to a worker.
    pub(crate) call_timeout: Duration,
    /// Bytes of request heads that are being read, and of bodies until their response begins.
    unread: Arc<AtomicUsize>,
    /// Bytes of responses that are held while they pass.
    copied: Arc<AtomicUsize>,
}

impl Transport {
    /// Creates the resources from the configuration. Fails if the certificates are invalid.
    pub fn new(config: &Config, idle: &Arc<Idle>) -> Result<Self, TlsError> {
        let tls = Tls::load(config)?;
        Ok(Self {
            client: client(config, &tls, idle),
            tls,
            via: Via::of_this_process(),
            call_timeout: config.health.timeout,
            unread: Arc::default(),
            copied: Arc::default(),
        })
    }

    /// Returns an empty reservation of memory for a request that is being read, within `max` bytes for all of them.
    #[must_use]
    pub(crate) fn request_reservation(&self, max: usize) -> ByteReservation {
        ByteReservation::new(Arc::clone(&self.unread), max)
    }

    /// Returns an empty reservation of memory for the part of a response that is held while it passes, within
    /// [`MAX_COPIED_BYTES`].
    #[must_use]
    pub fn response_reservation(&self) -> ByteReservation {
        ByteReservation::new(Arc::clone(&self.copied), MAX_COPIED_BYTES)
    }
}

fn client(config: &Config, tls: &Tls, idle: &Arc<Idle>) -> UpstreamClient {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let pool_timer = PoolTimer {
        idle: Arc::clone(idle),
        timer: TokioTimer::new(),
    };
    UpstreamClient::new(
        tls.connector(connector, config.limits.connect_timeout),
        pool_timer,
    )
}
