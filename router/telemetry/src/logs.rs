//! The process's log on standard error, with levels by module that can change at run time. It is global, as in the
//! `tracing` crate. A program that embeds the router installs its own log, whose lines name the request if it uses the
//! fields or formats of [`request`].

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

/// Target of this module's own lines, so that filters such as `tailroute=debug` apply.
const TARGET: &str = "tailroute::logs";

type Swap = Box<dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync>;

struct Log {
    swap: Swap,
    levels: Mutex<Levels>,
}

struct Levels {
    now: String,
    configured: String,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Time limit for writing a panic's line before the thread unwinds, in case the process does not survive.
const PANIC_LIMIT: Duration = Duration::from_millis(20);

const LONGEST_MESSAGE: usize = 256;

/// Reason why a level was not applied.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// The level is invalid.
    #[error("{0}")]
    Wrong(String),
    /// The log was not started by this module.
    #[error("the router did not set up this process's log")]
    NotOurs,
}

/// Returns the filter for a level. Crates that log connection contents, with prompts and keys, at `trace` are limited
/// to `debug` unless named. Fails if the level is invalid.
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
    // These crates warn about peers' input, so clients could fill the log.
    let lower = level.to_ascii_lowercase();
    let mut directives = lower.split(',').map(str::trim);
    let is_quiet = directives.any(|directive| directive == "info" || directive == "warn");
    for crate_name in ["rustls", "hickory_net"] {
        if is_quiet && !["trace", crate_name].iter().any(|word| lower.contains(word)) {
            filter = filter.add_directive(format!("{crate_name}=error").parse()?);
        }
    }
    // These crates log whole responses of an API server. Discovery reports their errors.
    for crate_name in ["kube_client", "kube_runtime"] {
        if !lower.contains(crate_name) {
            filter = filter.add_directive(format!("{crate_name}=off").parse()?);
        }
    }
    Ok(filter)
}

/// Starts the log and its panic hook. Fails if the level is invalid, or a log is already running.
pub fn start(log: &config::Log) -> anyhow::Result<()> {
    let filter = filter(&log.level)?;
    let writer = writer::start(log.format == LogFormat::Json).context("cannot start the log's thread")?;
    let builder = tracing_subscriber::fmt()
        .with_writer(writer)
        // The default prints internal errors to standard error, and panics if that fails.
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
    // `LOG` is empty: `done` would have failed if another log had been started.
    let _ = LOG.set(Log { swap, levels });
    // The standard hook writes to standard error and would block on a stalled reader.
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

fn panicked(info: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    error!(
        target: TARGET,
        at = info.location().map(tracing::field::display),
        thread = std::thread::current().name(),
        backtrace = backtrace.as_ref().map(tracing::field::display),
        "panic: {}",
        info.payload_as_str().unwrap_or("no message")
    );
    writer::flush(PANIC_LIMIT);
}

/// Returns the current level; `None` if the log is not the router's.
pub fn level() -> Option<String> {
    LOG.get().map(|log| log.levels.lock().now.clone())
}

/// Returns the configured level and the one that was set at run time, if they differ.
pub fn level_override() -> Option<(String, String)> {
    let levels = LOG.get()?.levels.lock();
    (levels.now != levels.configured).then(|| (levels.configured.clone(), levels.now.clone()))
}

/// Sets the level and returns the previous one. Fails and changes nothing if the level is invalid.
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
    info!(target: TARGET, before, level, "log level changed");
    Ok(before)
}

/// Applies a reloaded configuration's level if it differs from the last one; otherwise keeps a level set at run time.
/// Fails and changes nothing if the level is invalid, or this module did not start the log.
pub fn configure(level: &str) -> Result<(), LevelError> {
    let log = LOG.get().ok_or(LevelError::NotOurs)?;
    if std::mem::replace(&mut log.levels.lock().configured, level.to_owned()) != level {
        set_level(level)?;
    }
    Ok(())
}

/// Formats the message of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message");
    format!(
        "panic: {}",
        text.chars().take(LONGEST_MESSAGE).collect::<String>()
    )
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
    fn what_an_api_server_or_a_name_server_sends_writes_no_lines_unless_they_are_asked_for() {
        for (level, api_server, name_server) in [
            ("info", true, true),
            ("debug", true, false),
            ("info,kube_client=debug,hickory_net=debug", false, false),
        ] {
            let filter = filter(level).unwrap().to_string();
            assert_eq!(
                filter.contains("kube_client=off"),
                api_server,
                "{level}: {filter}"
            );
            assert_eq!(
                filter.contains("hickory_net=error"),
                name_server,
                "{level}: {filter}"
            );
        }
    }

    #[test]
    fn a_level_that_is_none_is_refused_with_the_nearest() {
        let error = set_level("info,tailroute=debgu").unwrap_err().to_string();
        assert!(error.contains("debgu") && error.contains("`debug`"), "{error}");
        assert!(matches!(set_level("debug"), Err(LevelError::NotOurs)));
    }
}
