//! The log of this process, on standard error, and what of it is shown: by module, and changed while it runs.
//!
//! There is one for all of the process, as the `tracing` crate has it; who embeds the router brings a log of its own, whose lines
//! say of which request they are if it has the fields, or the lines, of [`request`].

pub mod request;
pub mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use config::LogFormat;
use parking_lot::Mutex;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, DefaultFields, JsonFields};

/// Puts another filter in force.
type Swap = Box<dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync>;

/// The log that was started.
struct Log {
    swap: Swap,
    levels: Mutex<Levels>,
}

/// What is logged.
struct Levels {
    now: String,
    /// As the configuration had it when it was last read.
    configured: String,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// For a panic's line to be written before the thread unwinds, in case the process does not outlive it.
const PANIC_LIMIT: Duration = Duration::from_millis(20);

/// Why a level was not put in force.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// It is none.
    #[error("{0}")]
    Wrong(String),
    /// The log is not this module's.
    #[error("the log of this process was not started by the router")]
    NotOurs,
}

/// What is logged at this level. What other crates log at `trace` is only logged if their name is given: some of them show
/// what passes over a connection, and what passes there is prompts and keys.
///
/// # Errors
/// If the level is none.
pub fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let mut filter = EnvFilter::try_new(level).context("log.level")?;
    for crate_name in ["h2", "hyper", "hyper_util", "rustls", "tokio_rustls"] {
        let is_named = level
            .split(',')
            .any(|directive| directive.trim().starts_with(crate_name));
        if !is_named && level.to_ascii_lowercase().contains("trace") {
            filter = filter.add_directive(format!("{crate_name}=debug").parse()?);
        }
    }
    // They warn of what a peer sends: lines that a stranger can write at will.
    let lower = level.to_ascii_lowercase();
    let mut directives = lower.split(',').map(str::trim);
    let is_quiet = directives.any(|directive| directive == "info" || directive == "warn");
    for crate_name in ["rustls", "hickory_net"] {
        if is_quiet && !["trace", crate_name].iter().any(|word| lower.contains(word)) {
            filter = filter.add_directive(format!("{crate_name}=error").parse()?);
        }
    }
    // It writes whole answers of an API server. Discovery reports what is wrong with them.
    for crate_name in ["kube_client", "kube_runtime"] {
        if !lower.contains(crate_name) {
            filter = filter.add_directive(format!("{crate_name}=off").parse()?);
        }
    }
    Ok(filter)
}

/// Starts the log as it is configured. From then on panics are lines of it.
///
/// # Errors
/// If the level is none, or there is a log already.
pub fn start(log: &config::Log) -> anyhow::Result<()> {
    let filter = filter(&log.level)?;
    let writer = writer::start(log.format == LogFormat::Json).context("no thread for the log")?;
    let builder = tracing_subscriber::fmt()
        .with_writer(writer)
        // It would print them to standard error, and panic where that cannot be written to.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let (done, swap): (_, Swap) = match log.format {
        LogFormat::Json => {
            let lines = format::format().json().with_current_span(false);
            let builder = builder
                .fmt_fields(JsonFields::new())
                .event_format(request::Json(lines));
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Text => {
            let builder = builder.fmt_fields(request::Text(DefaultFields::new()));
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    done.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))?;
    let levels = Mutex::new(Levels {
        now: log.level.clone(),
        configured: log.level.clone(),
    });
    // Whoever was first has the log, and then `done` was an error.
    let _ = LOG.set(Log { swap, levels });
    // The standard hook writes to standard error itself, and would wait for a reader that stalls.
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

fn panicked(info: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    error!(
        at = info.location().map(tracing::field::display),
        thread = std::thread::current().name(),
        backtrace = backtrace.as_ref().map(tracing::field::display),
        "panic: {}",
        info.payload_as_str().unwrap_or("no message")
    );
    writer::flush(PANIC_LIMIT);
}

/// What is logged now; `None` if the log is not the router's.
#[must_use]
pub fn level() -> Option<String> {
    LOG.get().map(|log| log.levels.lock().now.clone())
}

/// Logs at another level from now on. Returns the one before.
///
/// # Errors
/// If it is none; then nothing has changed.
pub fn set_level(level: &str) -> Result<String, LevelError> {
    if let Some((what, hint)) = config::level_problem(level) {
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        return Err(LevelError::Wrong(format!("{what}{hint}")));
    }
    let wrong = |error: &dyn std::fmt::Display| LevelError::Wrong(error.to_string());
    let filter = filter(level).map_err(|error| wrong(&format!("{error:#}")))?;
    let log = LOG.get().ok_or(LevelError::NotOurs)?;
    let mut levels = log.levels.lock();
    (log.swap)(filter).map_err(|error| wrong(&error))?;
    let before = std::mem::replace(&mut levels.now, level.to_owned());
    drop(levels);
    info!(before, level, "log level changed");
    Ok(before)
}

/// The configuration was read again: its level is in force, if it differs from what was read last. Else what was set live
/// stays.
///
/// # Errors
/// If it is none, or the log is not this module's; then nothing has changed.
pub fn configure(level: &str) -> Result<(), LevelError> {
    let log = LOG.get().ok_or(LevelError::NotOurs)?;
    if std::mem::replace(&mut log.levels.lock().configured, level.to_owned()) != level {
        set_level(level)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_crates_show_of_connections_is_shown_only_to_who_names_them() {
        for (level, shown) in [
            ("trace", false),
            ("TRACE", false),
            ("hyper=trace", true),
            ("info,tailroute=trace", false),
        ] {
            let filter = filter(level).unwrap().to_string();
            assert_eq!(filter.contains("hyper=trace"), shown, "{level}: {filter}");
            assert!(filter.contains("rustls=debug"), "{level}: {filter}");
        }
    }

    #[test]
    fn what_a_client_says_within_tls_writes_no_lines_unless_they_are_asked_for() {
        for (level, is_quiet) in [
            ("info", true),
            ("info,tailroute=debug", true),
            ("WARN", true),
            ("info,rustls=warn", false),
            ("debug", false),
            ("off", false),
        ] {
            let filter = filter(level).unwrap().to_string();
            assert_eq!(filter.contains("rustls=error"), is_quiet, "{level}: {filter}");
        }
    }

    #[test]
    fn a_level_that_is_none_is_refused_with_the_nearest() {
        let error = set_level("info,tailroute=debgu").unwrap_err().to_string();
        assert!(error.contains("debgu") && error.contains("`debug`"), "{error}");
        assert!(matches!(set_level("debug"), Err(LevelError::NotOurs)));
    }
}
