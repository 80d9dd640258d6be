//! Settings of admission.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use policy::units::Millis;

use super::checker::Checker;
use super::worker::{Secret, secret};
use crate::written;

/// Settings of admission.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Path of the file of keys, if there is one.
    pub keys_file: Option<PathBuf>,
    /// Concurrent requests at the engines, per ready worker.
    pub max_concurrent_per_worker: Option<NonZeroU32>,
    /// Predicted wait on the least busy worker beyond which turns are queued; positive.
    pub max_wait: Option<Millis>,
    /// Largest number of queued requests.
    pub max_queue: NonZeroUsize,
    /// Longest time in the queue; positive.
    pub queue_timeout: Duration,
    /// Whether turns that cannot meet their objective are refused.
    pub shed: bool,
    /// Whether requests carry their tenant's salt.
    pub salt_requests: bool,
    /// Path of the secret's file, if there is one.
    pub salt_secret_file: Option<PathBuf>,
    /// The secret: at least 32 visible ASCII characters.
    pub salt_secret: Option<Secret>,
    /// Whether keys may use Anthropic's messages, which carry no salt.
    pub unsalted_messages: bool,
    /// Whether keys may send forms, which carry no salt.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets, which carry no salt.
    pub unsalted_websockets: bool,
    /// Whether keys may use embedding models on an SGLang that caches their inputs without a salt.
    pub unsalted_embeddings: bool,
}

/// Shortest secret; a shorter one can be guessed.
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
