//! The state of operation: administration, discovery, drain and hand-over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::Config;
use discovery::DiscoveryState;
use metrics::Metrics;
use operator::{AuditError, Operator};
use parking_lot::Mutex;

use crate::decisions::Pending;
use crate::idle::Idle;
use crate::overload::OverloadWatch;

/// Administration, discovery, and the phase of the process: idle, overloaded, draining, handed over.
#[derive(Debug)]
pub struct Operations {
    /// Admin tokens, audit log and events.
    pub operator: Operator,
    /// Discovery sources and what they found.
    pub discovery: Arc<DiscoveryState>,
    pub idle: Arc<Idle>,
    pub(crate) overload: Mutex<OverloadWatch>,
    /// Locked while a snapshot is read or written.
    pub snapshot: Mutex<()>,
    pub(crate) pending: Mutex<Pending>,
    /// Whether another process has taken over this one's state. Only that process then changes decisions and writes
    /// files.
    handed_over: AtomicBool,
    draining: AtomicBool,
}

impl Operations {
    /// Creates the state of a router that has served nothing yet. Fails if the audit log cannot be written.
    pub fn new(config: &Config, metrics: &Metrics, idle: Arc<Idle>) -> Result<Self, AuditError> {
        Ok(Self {
            operator: Operator::new(&config.admin)?,
            discovery: Arc::new(DiscoveryState::new(
                &config.discovery,
                metrics.discovery_observer(),
            )),
            idle,
            overload: Mutex::default(),
            snapshot: Mutex::new(()),
            pending: Mutex::default(),
            handed_over: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        })
    }

    /// Starts the drain: the router is no longer ready, and closes connections when they become idle.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Records whether another process has taken over this one's state. If so, this one changes no decision and writes
    /// no snapshot.
    pub fn set_handed_over(&self, handed_over: bool) {
        self.handed_over.store(handed_over, Ordering::Release);
    }

    /// Returns whether another process has taken over this one's state.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }
}
