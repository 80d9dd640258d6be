//! The subcommands: arguments in, text out, an exit code.

use std::io::{ErrorKind, Write as _};

pub mod check;
pub mod drive;
pub mod schema;
pub mod sim;

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

/// Writes `text` and a newline to standard error. Where even that fails there is nobody left to tell.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
