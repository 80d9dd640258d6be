//! Captures the router's log in memory.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use telemetry::logs::request::Text;
use tracing::Subscriber;
use tracing_subscriber::fmt::format::DefaultFields;
use tracing_subscriber::layer::SubscriberExt as _;

/// The captured log. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns the captured text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }

    /// Returns a subscriber that captures this level.
    ///
    /// # Panics
    /// If the level is invalid.
    #[must_use]
    pub fn at(&self, level: &str) -> impl Subscriber + Send + Sync + use<> {
        let log = self.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .fmt_fields(Text(DefaultFields::new()))
            .with_writer(move || log.clone());
        tracing_subscriber::registry()
            .with(telemetry::logs::filter(level).unwrap())
            .with(lines)
    }
}
