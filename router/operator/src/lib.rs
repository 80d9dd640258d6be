//! Administration of a running router: identities, changes and their reversal.
//!
//! Nothing here serves HTTP: the admin API, the configuration's reload and the scheduled revert all use these parts and
//! are recorded alike.

pub mod audit;
pub mod events;
pub mod recent;
pub mod reloads;
pub mod revisions;
pub mod secret;
pub mod shadow;
pub mod tokens;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use self::audit::Audit;
use self::events::Events;
use self::recent::Recent;
use self::reloads::ReloadState;
use self::tokens::Tokens;

/// State of the administration, except for the policy and the shadow policy.
#[derive(Debug)]
pub struct Operator {
    /// Admin tokens and their roles. Replaced as a whole when the token file changes.
    pub tokens: ArcSwap<Tokens>,
    pub audit: Audit,
    /// Events for subscribers of the admin API.
    pub events: Events,
    /// The most recent turns, if they are captured.
    pub recent: Recent,
    /// Outcome of the last reload of the configuration.
    pub reloads: Mutex<ReloadState>,
    /// Notified when a worker's α is set.
    pub alphas_set: Notify,
    /// Permits one preview at a time.
    pub preview_permit: Arc<Semaphore>,
    /// Permits one reader of all captured turns at a time, since each copies them.
    pub turn_readers: Arc<Semaphore>,
}

/// An audit log that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the audit log to {} (admin.audit_file)", path.display())]
pub struct AuditError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl Operator {
    /// Creates the state from the configuration. Fails if an audit log is configured and cannot be written.
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
            reloads: Mutex::default(),
            alphas_set: Notify::new(),
            preview_permit: Arc::new(Semaphore::new(1)),
            turn_readers: Arc::new(Semaphore::new(1)),
        })
    }
}

/// Returns the milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
