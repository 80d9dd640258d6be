//! What people do to a running router: who they are, what they changed, and the way back.
//!
//! [`tokens`] says who asks, [`revisions`] holds the policy in force with those before it, [`audit`] writes down what was
//! changed or refused, [`events`] tells who listens, [`recent`] keeps turns that
//! another policy can be tried on, and [`shadow`] follows the traffic with one. Nothing here knows HTTP: [`crate::admin`] speaks it, the configuration's reload and the scheduled
//! revert come from elsewhere, and all of them leave the same traces.

pub mod audit;
pub mod events;
pub mod recent;
pub mod revisions;
pub mod shadow;
pub mod tokens;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, Semaphore};

use self::audit::Audit;
use self::events::Events;
use self::recent::Recent;
use self::shadow::Shadow;
use self::tokens::Tokens;

/// What the admin port works with, beside the policy.
#[derive(Debug)]
pub struct Operator {
    /// Who may do what. Swapped whole when the file of tokens changes.
    pub tokens: ArcSwap<Tokens>,
    /// What was changed.
    pub audit: Audit,
    /// What changes, for who listens.
    pub events: Events,
    /// The newest turns, if they are captured.
    pub recent: Recent,
    /// A policy that follows the traffic.
    pub shadow: ArcSwapOption<Shadow>,
    /// Told when a worker's α is set.
    pub alphas_set: Notify,
    /// One preview at a time.
    pub previews: Arc<Semaphore>,
    /// One reader of all captured turns at a time: each has a copy of them.
    pub turns: Arc<Semaphore>,
}

/// An audit log that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the audit log to {} (admin.audit_file)", path.display())]
pub struct AuditError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl Operator {
    /// By this configuration.
    ///
    /// # Errors
    /// If the audit log was asked for and cannot be written.
    pub fn new(admin: &config::Admin) -> Result<Self, AuditError> {
        let audit = match &admin.audit {
            Some(settings) => {
                let failed = |source| AuditError {
                    path: settings.path.clone(),
                    source,
                };
                Audit::to_file(&settings.path, settings.max_bytes.get() as u64).map_err(failed)?
            }
            None => Audit::in_memory(),
        };
        Ok(Self {
            tokens: ArcSwap::from_pointee(Tokens::new(admin)),
            audit,
            events: Events::default(),
            recent: Recent::default(),
            shadow: ArcSwapOption::empty(),
            alphas_set: Notify::new(),
            previews: Arc::new(Semaphore::new(1)),
            turns: Arc::new(Semaphore::new(1)),
        })
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
