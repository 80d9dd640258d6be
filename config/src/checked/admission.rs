//! When a request waits, and when it is turned away.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use policy::units::Millis;

use super::checker::Checker;
use super::worker::{Secret, secret};
use crate::written;

/// When a request waits, and when it is turned away.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The file of keys, if there is one.
    pub keys_file: Option<PathBuf>,
    /// Requests at the engines at once, per ready worker.
    pub max_concurrent_per_worker: Option<NonZeroU32>,
    /// Predicted wait on the least busy worker beyond which turns wait here; positive.
    pub max_wait: Option<Millis>,
    /// Requests that wait.
    pub max_queue: NonZeroUsize,
    /// For a request to wait; positive.
    pub queue_timeout: Duration,
    /// Whether turns that cannot meet their objective are turned away.
    pub shed: bool,
    /// Whether requests carry their tenant.
    pub salt_requests: bool,
    /// The file of the secret, if there is one.
    pub salt_secret_file: Option<PathBuf>,
    /// What it holds: at least 32 visible ASCII characters.
    pub salt_secret: Option<Secret>,
    /// Whether keys may use Anthropic's messages, unsalted.
    pub unsalted_messages: bool,
    /// Whether keys may send forms, unsalted.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets, unsalted.
    pub unsalted_websockets: bool,
    /// Whether keys may use embedding models of an SGLang that caches their inputs, unsalted.
    pub unsalted_embeddings: bool,
}

/// Shorter secrets can be guessed.
const SHORTEST_SECRET: usize = 32;

fn salt_secret(file: &str, checker: &mut Checker<'_>) -> Option<Secret> {
    let found = secret(file, "admission.salt_secret_file", checker)?;
    if found.expose().len() < SHORTEST_SECRET {
        let what = format!("{file} holds less than {SHORTEST_SECRET} characters");
        let hint = Some("`openssl rand -hex 32` makes one".to_owned());
        checker.report("admission.salt_secret_file", what, hint);
        return None;
    }
    Some(found)
}

pub(super) fn admission(written: written::Admission, checker: &mut Checker<'_>) -> Admission {
    Admission {
        keys_file: (!written.keys_file.is_empty()).then(|| written.keys_file.into()),
        max_concurrent_per_worker: NonZeroU32::new(written.max_concurrent_per_worker),
        max_wait: (written.max_wait_ms > 0.0).then_some(Millis(written.max_wait_ms)),
        max_queue: checker.bytes("admission.max_queue", written.max_queue.into()),
        queue_timeout: checker.seconds("admission.queue_timeout_s", written.queue_timeout_s),
        shed: written.shed,
        salt_requests: written.salt_requests,
        salt_secret: salt_secret(&written.salt_secret_file, checker),
        salt_secret_file: (!written.salt_secret_file.is_empty()).then(|| written.salt_secret_file.into()),
        unsalted_messages: written.unsalted_messages,
        unsalted_forms: written.unsalted_forms,
        unsalted_websockets: written.unsalted_websockets,
        unsalted_embeddings: written.unsalted_embeddings,
    }
}
