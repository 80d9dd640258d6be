//! Output to the terminal, with escaped control characters: workers and routers choose names and error texts.

use std::io::{self, ErrorKind, Write as _};

use policy::text::printable_lines;

/// Writes text and a newline to standard output. Fails if it cannot be written to, unless its reader has gone.
pub fn print(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{}", printable_lines(text)) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes text and a newline to standard error. A failed write is ignored.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable_lines(text));
}
