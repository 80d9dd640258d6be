//! Output to the terminal that tolerates closed and blocked streams.

use std::io::{ErrorKind, Write as _};
use std::sync::mpsc;
use std::time::Duration;

/// Writes `text` and a newline to standard output. Fails if it cannot be written to, unless its reader has gone.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

const COMPLAINT_LIMIT: Duration = Duration::from_secs(1);

/// Writes `text` and a newline to standard error. A failed write is ignored, and a blocked one is abandoned.
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
