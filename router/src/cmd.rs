//! The subcommands: arguments in, text out, an exit code.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::sync::mpsc;
use std::time::Duration;

pub mod check;
pub mod ctl;
pub mod demo;
pub mod drive;
pub mod key;
mod progress;
pub mod replay;
pub mod schema;
pub mod serve;
pub mod sim;
pub mod tables;
pub mod top;

/// Writes `text` and a newline to standard output. A reader that went away (`tailroute schema | head`) is no failure.
///
/// # Errors
/// If standard output cannot be written to, other than because nobody reads it.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Time for standard error to take what is written to it as a program ends.
const COMPLAINT_LIMIT: Duration = Duration::from_secs(1);

/// Writes `text` and a newline to standard error. A write that fails is ignored, and one that blocks is given up.
pub fn complain(text: &str) {
    let (line, (done, written)) = (format!("{text}\n"), mpsc::channel());
    let write = move || {
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = written.recv_timeout(COMPLAINT_LIMIT);
    }
}

/// The process's environment. Names and values that are no UTF-8 cannot be ours.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}
