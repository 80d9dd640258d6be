//! Output to the terminal that tolerates closed and blocked streams. Control characters are escaped, wherever the text
//! came from.

use std::io::{ErrorKind, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use policy::text::printable_lines;

/// Writes `text` and a newline to standard output. Fails if it cannot be written to, unless its reader has gone.
pub fn print(text: &str) -> std::io::Result<()> {
    print_styled(&printable_lines(text))
}

/// Writes `text` as [`print`] does, but keeps escape sequences for colours. Text from elsewhere must be escaped
/// already.
pub fn print_styled(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

const COMPLAINT_LIMIT: Duration = Duration::from_secs(1);

/// Writes `text` and a newline to standard error. A failed write is ignored, and a blocked one is abandoned.
pub fn complain(text: &str) {
    let (line, (done, written)) = (format!("{}\n", printable_lines(text)), mpsc::channel());
    let write = move || {
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = written.recv_timeout(COMPLAINT_LIMIT);
    }
}
