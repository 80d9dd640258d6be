//! Probes `/livez` periodically from a thread of its own, like an orchestrator: each time on a new connection.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tailroute_e2e::environment::is_strict;

/// Interval between probes.
const EVERY: Duration = Duration::from_millis(100);
/// An orchestrator's timeout.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);
/// The same where the machine may stall. Strangers hold descriptors and the admin port's places for longer.
const GIVEN_UP_AFTER_STALLS: Duration = Duration::from_secs(4);

/// Probes until it is stopped.
#[derive(Debug)]
pub(crate) struct Livez {
    stop: Sender<()>,
    thread: JoinHandle<Probed>,
}

#[derive(Debug, Default)]
pub(crate) struct Probed {
    pub(crate) answered: usize,
    pub(crate) slowest: Duration,
    pub(crate) failed: Vec<String>,
}

impl Livez {
    pub(crate) fn start(admin: SocketAddr) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut probed, began) = (Probed::default(), Instant::now());
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                match probe(admin) {
                    Ok(()) => {
                        probed.answered += 1;
                        probed.slowest = probed.slowest.max(asked.elapsed());
                    }
                    Err(error) => {
                        let at = began.elapsed().as_secs_f64();
                        probed.failed.push(format!("after {at:.1} s: {error}"));
                    }
                }
            }
            probed
        });
        Self { stop, thread }
    }

    pub(crate) fn end(self) -> Probed {
        // Dropping the sender ends the thread.
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

fn probe(admin: SocketAddr) -> io::Result<()> {
    let given_up_after = if is_strict() {
        GIVEN_UP_AFTER
    } else {
        GIVEN_UP_AFTER_STALLS
    };
    let mut stream = TcpStream::connect_timeout(&admin, given_up_after)?;
    stream.set_read_timeout(Some(given_up_after))?;
    write!(
        stream,
        "GET /livez HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.starts_with(b"HTTP/1.1 200 ") {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer);
    Err(io::Error::other(
        answer.lines().next().unwrap_or("nothing").to_owned(),
    ))
}
