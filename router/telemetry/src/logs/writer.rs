//! Writes log lines to standard error without blocking or failing the caller.
//!
//! Lines go into a bounded buffer that one thread writes. A stalled reader blocks only that thread; a full disk or a
//! closed reader loses only lines. Lost lines are counted ([`dropped`]) and reported once writing succeeds again.
//!
//! Rejected: `tracing-appender`. It bounds lines, not bytes, counts no failed writes, and panics if stdout is closed.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

/// Capacity of the buffer. The thread holds the same amount while it writes.
const WAITING_BYTES: usize = 1 << 20;
/// Maximum length of a line, in bytes; a longer one is cut.
const LONGEST_LINE: usize = 16 << 10;
/// Pause before a non-blocking standard error is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// Lines dropped since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Dropped because the buffer was full: standard error is slower than the log, or stalled.
    pub full: u64,
    /// Dropped because standard error could not be written to.
    pub failed: u64,
}

impl Dropped {
    fn all(self) -> u64 {
        self.full + self.failed
    }
}

static LINES: OnceLock<&'static Lines> = OnceLock::new();

pub(super) fn start(is_json: bool) -> io::Result<LogWriter> {
    let lines = LINES.get_or_init(|| Box::leak(Box::default()));
    // One thread for the life of the process, so the leak is bounded.
    let run = || lines.write_to(&mut io::stderr());
    std::thread::Builder::new().name("log".to_owned()).spawn(run)?;
    Ok(LogWriter { lines, is_json })
}

/// Returns the number of dropped lines.
#[must_use]
pub fn dropped() -> Dropped {
    LINES
        .get()
        .map(|lines| lines.state.lock().dropped)
        .unwrap_or_default()
}

/// Waits until the buffer is written or the time limit has passed.
pub fn flush(limit: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(limit);
    }
}

/// Writer of the log's lines; each `write` is one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogWriter {
    lines: &'static Lines,
    is_json: bool,
}

#[derive(Debug, Default)]
struct Lines {
    state: Mutex<LogQueue>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct LogQueue {
    waiting: Vec<u8>,
    is_writing: bool,
    dropped: Dropped,
}

impl Lines {
    fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.waiting.len() + line.len() > WAITING_BYTES {
            state.dropped.full += 1;
        } else {
            state.waiting.extend_from_slice(line);
            self.filled.notify_one();
        }
    }

    fn write_to(&self, out: &mut impl Write) {
        let (mut batch, mut is_torn, mut told) = (Vec::new(), false, 0);
        loop {
            let before = self.take(&mut batch);
            let work = AssertUnwindSafe(|| write_lines(out, &batch, &mut is_torn));
            // After a panic the number of written lines is unknown, so all count as dropped.
            let lost = catch_unwind(work).unwrap_or_else(|_| count_lines(&batch));
            let mut state = self.state.lock();
            state.dropped.failed += lost;
            state.is_writing = false;
            drop(state);
            self.emptied.notify_all();
            if lost == 0 && before.all() > told {
                told = before.all();
                warn!(
                    target: super::TARGET,
                    lines = told,
                    "lines of the log were lost since the start: standard error was too slow, or could not be written to"
                );
            }
        }
    }

    /// Waits for lines and takes them. Returns the dropped lines so far.
    fn take(&self, batch: &mut Vec<u8>) -> Dropped {
        batch.clear();
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            self.filled.wait(&mut state);
        }
        std::mem::swap(batch, &mut state.waiting);
        state.is_writing = true;
        state.dropped
    }

    fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.is_writing || !state.waiting.is_empty() {
            if self.emptied.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

/// Writes lines and returns how many were dropped. A partly written line is followed by a line break.
fn write_lines(out: &mut impl Write, mut lines: &[u8], is_torn: &mut bool) -> u64 {
    let whole = |written: &[u8]| written.last().is_none_or(|byte| *byte == b'\n');
    if *is_torn {
        match write_some(out, b"\n") {
            Ok(_) => *is_torn = false,
            Err(_) => return count_lines(lines),
        }
    }
    while !lines.is_empty() {
        match write_some(out, lines) {
            Ok(count) => {
                *is_torn = !whole(&lines[..count]);
                lines = &lines[count..];
            }
            Err(_) => return count_lines(lines),
        }
    }
    0
}

fn write_some(out: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the file may have made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => rest(),
            done => return done,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a separate thread that no request waits for"
)]
fn rest() {
    std::thread::sleep(AGAIN);
}

fn count_lines(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

fn cut(line: &[u8], is_json: bool) -> Vec<u8> {
    let begins = String::from_utf8_lossy(&line[..LONGEST_LINE / 4]);
    let mut cut = if is_json {
        let fields =
            json!({ "message": "a line of the log was too long", "bytes": line.len(), "begins": begins });
        json!({ "level": "WARN", "target": module_path!(), "fields": fields }).to_string()
    } else {
        format!("{begins} … ({} bytes)", line.len())
    };
    cut.push('\n');
    cut.into_bytes()
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() > LONGEST_LINE {
            self.lines.push(&cut(line, self.is_json));
        } else {
            self.lines.push(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn lines() -> &'static Lines {
        Box::leak(Box::default())
    }

    fn write(lines: &'static Lines, line: &str) {
        let mut writer = LogWriter {
            lines,
            is_json: false,
        };
        writer.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Waits until the expected number of lines is dropped.
    fn lost(lines: &Lines, wanted: Dropped) {
        let begun = Instant::now();
        while lines.state.lock().dropped != wanted {
            assert!(begun.elapsed() < LONG, "{:?}", lines.state.lock().dropped);
            std::thread::yield_now();
        }
    }

    struct Out {
        written: Arc<Mutex<Vec<u8>>>,
        answers: mpsc::Receiver<io::Result<usize>>,
    }

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.answers.recv().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
            self.written.lock().extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Permits or fails one write.
    type Answer = mpsc::Sender<io::Result<usize>>;

    /// A log in which each write waits for a result.
    fn log() -> (&'static Lines, Arc<Mutex<Vec<u8>>>, Answer) {
        let (lines, written) = (lines(), Arc::<Mutex<Vec<u8>>>::default());
        let (answer, answers) = mpsc::channel();
        let mut out = Out {
            written: Arc::clone(&written),
            answers,
        };
        std::thread::spawn(move || lines.write_to(&mut out));
        (lines, written, answer)
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().clone()).unwrap()
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_beyond_the_bound_and_holds_nobody_up() {
        let (lines, written, answer) = log();
        let line = "x".repeat(LONGEST_LINE - 1);
        let fit = WAITING_BYTES / LONGEST_LINE;
        write(lines, &line);
        // The thread has taken the first line and is blocked on it.
        let begun = Instant::now();
        while !lines.state.lock().is_writing {
            assert!(begun.elapsed() < LONG);
            std::thread::yield_now();
        }
        for _ in 0..fit + 7 {
            write(lines, &line);
        }
        let full = Dropped { full: 7, failed: 0 };
        assert_eq!(lines.state.lock().dropped, full);
        lines.flush(Duration::from_millis(10));
        drop(answer);
        lines.flush(LONG);
        assert_eq!(text(&written).lines().count(), fit + 1);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_a_torn_line_is_not_gone_on_with() {
        let (lines, written, answer) = log();
        answer.send(Ok(2)).unwrap();
        answer.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        write(lines, "first");
        lost(lines, Dropped { full: 0, failed: 1 });
        answer.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
        write(lines, "second");
        lost(lines, Dropped { full: 0, failed: 2 });
        drop(answer);
        write(lines, "third");
        lines.flush(LONG);
        assert_eq!(text(&written), "fi\nthird\n");
    }

    #[test]
    fn a_writer_that_panics_costs_its_lines_and_not_the_thread() {
        struct Panics(mpsc::Sender<Vec<u8>>, bool);
        impl Write for Panics {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                assert!(std::mem::replace(&mut self.1, true), "on purpose");
                self.0.send(bytes.to_vec()).unwrap();
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (lines, (tell, told)) = (lines(), mpsc::channel());
        std::thread::spawn(move || lines.write_to(&mut Panics(tell, false)));
        write(lines, "first");
        lost(lines, Dropped { full: 0, failed: 1 });
        write(lines, "second");
        assert_eq!(told.recv_timeout(LONG).unwrap(), b"second\n");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_one_of_json_stays_json() {
        let line = format!("{}\n", "é\"\\".repeat(LONGEST_LINE));
        for is_json in [false, true] {
            let cut = cut(line.as_bytes(), is_json);
            assert!(cut.len() <= LONGEST_LINE, "{}", cut.len());
            assert_eq!(count_lines(&cut), 1);
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&cut).is_ok(), is_json);
        }
    }
}
