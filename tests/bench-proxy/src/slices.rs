//! Costs of several contenders that have the load in turns, a slice of time each.
//!
//! What the machine's neighbours do for longer than some slices, they do to all alike: the same router, measured twice for a
//! second after a second of another one, differs by a fifth on a shared machine, and by a fiftieth in slices.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::load::Load;
use crate::measure::{Cell, PATIENCE, per};
use crate::process::Process;

/// How time is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    /// Of one contender.
    pub each: Duration,
    pub count: u32,
    /// What it does while others have the load is its cost, too: some of that is owed.
    pub all_counts: bool,
}

impl Slices {
    /// Of so much time, for contenders that may take a while to answer.
    pub(crate) fn of(time: Duration) -> Self {
        const COUNT: u32 = 10;
        Self {
            each: time / COUNT,
            count: COUNT,
            all_counts: false,
        }
    }
}

/// One that is measured.
struct Measured<'a> {
    process: &'a Process,
    cell: Cell,
    load: Load,
    /// What it had used and done when its measurement began.
    before: (Duration, u64),
    /// Used in its slices.
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

    /// Answers, or events of the answers where these are long.
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

/// Microseconds of each per answer, or per event of answers that are long; or why there is no figure of it.
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
            // Nobody comes always after the same one.
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
