//! Progress of long commands, on standard error if that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(2);
const STRIDE: u64 = 256;

/// A bar that appears once a command has run for two seconds, if standard error is a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    done: u64,
    shown: bool,
    stride: u64,
}

impl Progress {
    /// Creates a bar for `total` steps of `what`.
    pub fn new(total: u64, what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) =
            ProgressStyle::with_template("{bar:40} {pos}/{len} {prefix}, {elapsed} of about {duration}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        Self {
            bar,
            started: Instant::now(),
            done: 0,
            shown: false,
            // With few, long steps the clock is checked at each.
            stride: if total > 100 * STRIDE { STRIDE } else { 1 },
        }
    }

    /// Counts one more step.
    pub fn step(&mut self) {
        self.done += 1;
        if !self.done.is_multiple_of(self.stride) {
            return;
        }
        if !self.shown && self.started.elapsed() > PATIENCE {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(self.done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
