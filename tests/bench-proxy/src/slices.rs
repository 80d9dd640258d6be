//! Measures the costs of several contenders that have the load in turns, a slice of time each.
//!
//! Disturbances of the machine that last longer than some slices affect all contenders alike: the same router,
//! measured twice for a second after a second of another one, differs by a fifth on a shared machine, and by a
//! fiftieth in slices.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::load::Load;
use crate::measure::{Cell, PATIENCE, per};
use crate::process::Process;

/// The division of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    /// Length of a slice.
    pub each: Duration,
    pub count: u32,
    /// Whether a contender's work outside its slices counts, because some of it belongs to its load.
    pub all_counts: bool,
}

impl Slices {
    /// Divides `time` into slices for contenders that may be slow to answer.
    pub(crate) fn of(time: Duration) -> Self {
        const COUNT: u32 = 10;
        Self {
            each: time / COUNT,
            count: COUNT,
            all_counts: false,
        }
    }
}

/// A contender under measurement.
struct Measured<'a> {
    process: &'a Process,
    cell: Cell,
    load: Load,
    /// Its processor time and work when its measurement began.
    before: (Duration, u64),
    /// Processor time used in its slices.
    used: Duration,
}

impl<'a> Measured<'a> {
    async fn start(
        cell: Cell,
        (target, process): (SocketAddr, &'a Process),
        warm_up: Duration,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut load = Load::start(target, cell.shape(seed));
        load.run(warm_up).await?;
        load.pause(PATIENCE).await?;
        let mut measured = Self {
            process,
            cell,
            load,
            before: (Duration::ZERO, 0),
            used: Duration::ZERO,
        };
        measured.before = (process.cpu()?, measured.done());
        Ok(measured)
    }

    /// Returns the number of responses, or of events if responses are long.
    fn done(&self) -> u64 {
        let counts = &self.load.counts;
        match self.cell {
            Cell::Burst => counts.events.load(Ordering::Relaxed),
            _ => counts.answers.load(Ordering::Relaxed),
        }
    }

    async fn slice(&mut self, time: Duration) -> anyhow::Result<()> {
        let before = self.process.cpu()?;
        self.load.resume();
        self.load.run(time).await?;
        self.load.pause(PATIENCE).await?;
        self.used += self.process.cpu()? - before;
        Ok(())
    }

    async fn end(self, all_counts: bool) -> anyhow::Result<f64> {
        let (cpu, done) = self.before;
        let used = match all_counts {
            true => self.process.cpu()? - cpu,
            false => self.used,
        };
        let each = per(used, self.done() - done);
        self.load.finish().await?;
        each
    }
}

/// Returns each contender's microseconds per response, or per event if responses are long; or the reason for a
/// missing value.
pub(crate) async fn in_slices(
    cell: Cell,
    targets: &[(SocketAddr, &Process)],
    slices: Slices,
    seed: u64,
) -> Vec<anyhow::Result<f64>> {
    let mut all = Vec::new();
    for &target in targets {
        all.push(Measured::start(cell, target, slices.each, seed).await);
    }
    for slice in 0..slices.count as usize {
        for turn in 0..all.len() {
            // The order alternates, so that no contender always follows the same one.
            let place = if slice % 2 == 0 {
                turn
            } else {
                all.len() - 1 - turn
            };
            let who = (slice / 2 + place) % all.len();
            if let Ok(measured) = &mut all[who]
                && let Err(error) = measured.slice(slices.each).await
            {
                all[who] = Err(error);
            }
        }
    }
    let mut costs = Vec::new();
    for measured in all {
        costs.push(match measured {
            Ok(measured) => measured.end(slices.all_counts).await,
            Err(error) => Err(error),
        });
    }
    costs
}
