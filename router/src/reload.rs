//! Reloads the configuration while the router serves: on SIGHUP, and when one of its files changes.
//!
//! Everything is read again: file, environment and flags, keys, certificates. If anything is wrong, the previous
//! configuration stays in force. docs/operating.md, "Reload", lists what takes effect when; all other changes need a
//! restart, which a [hand-over](crate::serve) makes seamless. Files are compared by their metadata, following links,
//! once a second: a mounted ConfigMap is a link that is swapped, and not every file system sends notifications of that.

mod file_watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config::file::{Stamp, stamp};
use config::{Config, LoadError, Overrides};
use policy::route::Settings;
use serde_json::{Value, json};
use telemetry::logs::LevelError;
use tokio::sync::Notify;
use tracing::{info, warn};

use self::file_watch::{FileStamps, FileWatch};
use crate::serve::descriptors;
use admin::Admin;
use operator::audit::{AuditRecord, Author};
use operator::events::EventKind;
use operator::revisions::Revision;
use operator::tokens::{NamedDigests, Tokens};
use tailroute_http::error::with_causes;
use tailroute_http::tls::TlsError;

/// Interval between two checks of a changed file, which is read once both agree, since writing it may take time.
const SETTLE: Duration = Duration::from_millis(500);

/// Limits for the audit log: characters of a refusal's reason, and names of added or removed keys.
const MAX_WHY: usize = 500;
const MAX_NAMES: usize = 100;

/// Sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// Configuration file.
    pub file: Option<PathBuf>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Command-line overrides.
    pub overrides: Overrides,
}

/// The previous and the new revision of the policy.
pub type Changed = (Arc<Revision>, Arc<Revision>);

/// Reason why a configuration was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration is invalid.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The certificates are invalid.
    #[error("the certificates cannot be used: {0}")]
    Tls(#[from] TlsError),
    /// Clients would be admitted without keys.
    #[error(
        "[[keys]] and admission.keys_file are removed, which would admit clients without keys: restart the router \
         to serve without keys"
    )]
    KeysGone,
    /// The admin API would be open without tokens.
    #[error(
        "admin.tokens_file is removed, which would open the admin API: restart the router to serve without tokens"
    )]
    TokensGone,
    /// Clients would be admitted without a certificate.
    #[error(
        "tls.client_ca_file is removed, which would admit clients without a certificate: restart the router to do so"
    )]
    ClientCaGone,
}

impl ConfigSource {
    /// Builds the configuration. Fails if it is invalid.
    pub fn load(&self) -> Result<Config, LoadError> {
        config::load_file(
            self.file.as_deref(),
            self.environment.clone(),
            self.overrides.clone(),
        )
    }
}

/// Reloads the configuration and applies it if it is valid. Returns the entries for the audit log.
pub fn reload(router: &Admin, source: &ConfigSource) -> Vec<AuditRecord> {
    let (tokens, keys) = (
        router.state.operations.operator.tokens.load().named(),
        router.proxy.admission.keys().named(),
    );
    let generation = router.state.operations.operator.reloads.lock().generation;
    let policy = put_in_force(router, source);
    let state = router.state.operations.operator.reloads.lock().clone();
    let outcome = match &state.refused {
        Some(why) => Err(why.chars().take(MAX_WHY).collect()),
        None => Ok((
            Some(json!({ "generation": generation })),
            Some(json!({
                "generation": state.generation,
                "needs_restart": state.needs_restart,
                "tokens": differences(&tokens, &router.state.operations.operator.tokens.load().named()),
                "keys": differences(&keys, &router.proxy.admission.keys().named()),
            })),
        )),
    };
    let read = AuditRecord {
        who: Author::router(),
        action: "config.reload".to_owned(),
        target: "config".to_owned(),
        why: None,
        outcome,
    };
    let policy = policy.map(|(before, after)| AuditRecord::by_router("config.reload", &before, &after));
    policy.into_iter().chain([read]).collect()
}

/// Lists names that were added, removed, or whose secret changed.
fn differences(before: &NamedDigests, after: &NamedDigests) -> Value {
    let without = |these: &NamedDigests, those: &NamedDigests| -> Vec<String> {
        let names = these.keys().filter(|name| !those.contains_key(*name));
        names.take(MAX_NAMES).cloned().collect()
    };
    let changed = after
        .iter()
        .filter(|(name, now)| before.get(*name).is_some_and(|was| was != *now));
    let changed: Vec<_> = changed.map(|(name, _)| name).take(MAX_NAMES).collect();
    json!({ "added": without(after, before), "removed": without(before, after), "changed": changed })
}

fn put_in_force(router: &Admin, source: &ConfigSource) -> Option<Changed> {
    let outcome = source.load().map_err(ReloadError::from);
    let outcome = outcome.and_then(|mut config| {
        descriptors::fit(&mut config);
        reconfigure(router, &config)
    });
    let mut state = router.state.operations.operator.reloads.lock();
    let policy = match outcome {
        Ok(Reconfigured {
            needs_restart,
            policy,
        }) => {
            state.generation += 1;
            state.refused = None;
            info!(generation = state.generation, "configuration reloaded");
            if !needs_restart.is_empty() && needs_restart != state.needs_restart {
                warn!(sections = needs_restart.join(", "), "changed; restart required");
            }
            state.needs_restart = needs_restart;
            router.state.routing.metrics.reloaded(true);
            policy
        }
        Err(error) => {
            let why = with_causes(&error);
            warn!(
                error = why,
                "configuration rejected; the previous one stays in force"
            );
            state.refused = Some(why);
            router.state.routing.metrics.reloaded(false);
            None
        }
    };
    let now = serde_json::to_value(&*state).unwrap_or_default();
    router
        .state
        .operations
        .operator
        .events
        .tell(EventKind::Reload, "config", now);
    policy
}

/// What changed with another configuration.
#[derive(Debug)]
pub struct Reconfigured {
    /// Sections that have changed and need a restart.
    pub needs_restart: Vec<&'static str>,
    /// The policy before and after, if `[routing]` changed it here.
    pub policy: Option<Changed>,
}

/// Applies another configuration, as far as that is possible while the router serves.
/// Fails if its certificates cannot be used, or if it would open an access; then nothing has changed.
pub fn reconfigure(router: &Admin, config: &Config) -> Result<Reconfigured, ReloadError> {
    stays_closed(router, config)?;
    let state = &router.state;
    state.transport.tls.reload(config)?;
    let policy = configure_policy(router, config.routing.settings());
    state
        .operations
        .operator
        .tokens
        .store(Arc::new(Tokens::new(&config.admin)));
    router.proxy.admission.reload(config, state.routing.clock.now());
    state.routing.set_live(config);
    // `NotOurs` is no error: the level applies only to a log that the router has started.
    if let Err(error @ LevelError::Wrong(_)) = telemetry::logs::configure(&config.log.level) {
        warn!(%error, "cannot apply log.level");
    }
    if let (Some(traces), Some(settings)) = (&router.proxy.traces, &config.traces) {
        traces.send_headers(&settings.headers);
    }
    Ok(Reconfigured {
        needs_restart: needs_restart(&state.config, config),
        policy,
    })
}

/// Applies `[routing]`. Returns the old and the new policy if it changed at once; a policy shared by replicas does not.
fn configure_policy(router: &Admin, settings: Settings) -> Option<Changed> {
    if router.bus.as_ref().is_some_and(|bus| !bus.has_own_policy()) {
        router.state.routing.policy.configure_all(settings);
        return None;
    }
    router.state.configure_policy(settings)
}

/// Checks that `new` does not open an access that is protected now. A truncated file can be a valid configuration, and
/// removing keys or certificates by accident must not open the router. Fails with the access that it would open.
pub fn stays_closed(router: &Admin, new: &Config) -> Result<(), ReloadError> {
    if router.proxy.admission.keys().is_required() && !new.requires_keys() {
        return Err(ReloadError::KeysGone);
    }
    if router.state.operations.operator.tokens.load().is_required() && new.admin.tokens_file.is_none() {
        return Err(ReloadError::TokensGone);
    }
    let asks = |config: &Config| {
        let server = config.tls.server.as_ref();
        server.is_some_and(|server| server.client_ca.is_some())
    };
    if asks(&router.state.config) && !asks(new) {
        return Err(ReloadError::ClientCaGone);
    }
    Ok(())
}

/// Reloads the configuration on request, and when one of its files changes. Does not end.
pub async fn watch(router: Arc<Admin>, source: ConfigSource, asked: Arc<Notify>) {
    let mut in_force = look(&router, &source).await;
    let mut files = FileWatch::default();
    loop {
        let changed = tokio::select! {
            () = asked.notified() => None,
            changed = changed(&router, &source, &in_force, &mut files) => Some(changed),
        };
        in_force = match changed {
            Some(changed) => changed,
            None => look(&router, &source).await,
        };
        let source = source.clone();
        let reading = Arc::clone(&router);
        let changed = tokio::task::spawn_blocking(move || reload(&reading, &source)).await;
        for happened in changed.unwrap_or_default() {
            router.state.operations.operator.audit.record(happened).await;
        }
    }
}

/// Waits until the files have changed and two looks at them agree.
async fn changed(
    router: &Admin,
    source: &ConfigSource,
    in_force: &FileStamps,
    files: &mut FileWatch,
) -> FileStamps {
    loop {
        let mut seen = look(router, source).await;
        while seen != *in_force {
            tokio::time::sleep(SETTLE).await;
            let before = std::mem::replace(&mut seen, look(router, source).await);
            if seen == before {
                return seen;
            }
        }
        files.differs(in_force).await;
    }
}

/// Metadata that identifies a state of a file.
async fn look(router: &Admin, source: &ConfigSource) -> FileStamps {
    let own: Vec<PathBuf> = {
        let files = &router.state.routing.live().files;
        source.file.iter().chain(files).cloned().collect()
    };
    let looks = look_at(own.clone()).await;
    own.into_iter().zip(looks).collect()
}

/// Returns the states of files, in order; `None` for one that is missing, or whose file system does not respond.
async fn look_at(paths: Vec<PathBuf>) -> Vec<Option<Stamp>> {
    let none = vec![None; paths.len()];
    let look = move || paths.iter().map(|path| stamp(path)).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or(none)
}

/// Returns the sections that differ from those at the start and cannot change while the router serves.
pub fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let connections = |config: &Config| {
        let limits = &config.limits;
        let sizes = (limits.max_connections, limits.max_header_bytes);
        (sizes, limits.header_timeout, limits.connect_timeout)
    };
    // Tokens, and whether metrics need one, are reloaded.
    let port = |config: &Config| {
        let admin = &config.admin;
        (admin.listen, admin.audit.clone())
    };
    // The headers come from a file that is reloaded.
    let traces = |config: &Config| {
        let traces = config.traces.clone();
        traces.map(|traces| config::Traces {
            headers: http::HeaderMap::new(),
            ..traces
        })
    };
    let changed = [
        ("server", old.server != new.server),
        ("admin", port(old) != port(new)),
        ("endpoint_picker", old.endpoint_picker != new.endpoint_picker),
        ("http", old.http != new.http),
        ("workers", old.workers != new.workers),
        ("discovery", old.discovery != new.discovery),
        (
            "routing.utilisation_window_s",
            old.routing.utilisation_window != new.routing.utilisation_window,
        ),
        (
            "routing.tokens_per_byte",
            old.routing.tokens_per_byte != new.routing.tokens_per_byte,
        ),
        (
            "routing.unlisted_models",
            old.routing.unlisted_models != new.routing.unlisted_models,
        ),
        (
            "hints.protect_from",
            old.hints.protect_from != new.hints.protect_from,
        ),
        ("learning", old.learning != new.learning),
        ("index", old.index != new.index),
        ("health", old.health != new.health),
        ("failure", old.failure != new.failure),
        ("limits (of connections)", connections(old) != connections(new)),
        (
            "tls (on or off)",
            old.tls.server.is_some() != new.tls.server.is_some(),
        ),
        ("capture", old.capture != new.capture),
        ("explain", old.explain != new.explain),
        ("traces", traces(old) != traces(new)),
        ("fleet", old.fleet != new.fleet),
        ("log.format", old.log.format != new.log.format),
    ];
    let names = changed.into_iter().filter(|(_, changed)| *changed);
    names.map(|(name, _)| name).collect()
}
