//! Measures one figure of one contender.
//!
//! Cost is the processor time of the contender's processes between two moments, divided by the work done between
//! them: unlike a rate, it does not depend on other users of the machine. Latencies are compared with those of
//! clients connected directly to the engine, in the same round.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::body::Asked;
use crate::load::{Load, Shape, Times, quantile};
use crate::process::Process;
use crate::slices::{Slices, in_slices};

/// Default number of connections.
const CLIENTS: usize = 64;
/// Interval between two tokens of a paced stream.
pub(crate) const GAP: Duration = Duration::from_millis(40);
/// Tokens of a stream that is cut before its end.
const ENDLESS: u32 = 1_000_000;
/// Tokens of a burst.
const BURST: u32 = 1000;
/// Tokens of a timed stream.
const SHORT: u32 = 25;
/// Conversations before memory is measured, and their turns.
const CONVERSATIONS: u64 = 10_000;
const TURNS_REMEMBERED: u64 = 2;
/// Timeout for a contender to reach its steady state.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cell {
    /// Latency of a tiny request without other load.
    Latency,
    /// Cost of a request with a body of this size at 64 connections.
    Request(usize),
    /// Cost of a token with this number of paced streams.
    Paced(usize),
    /// Cost of a token of streams at full speed.
    Burst,
    /// Latencies of 64 paced streams that end and begin.
    Stream,
}

/// The figures: name, unit, and whether the engine's own value is subtracted.
pub(crate) const FIGURES: [(&str, &str, bool); 12] = [
    ("latency_p50", "µs", true),
    ("request_tiny", "µs CPU", false),
    ("request_8k", "µs CPU", false),
    ("request_128k", "µs CPU", false),
    ("request_1m", "µs CPU", false),
    ("token_64_streams", "µs CPU", false),
    ("token_256_streams", "µs CPU", false),
    ("token_1000_streams", "µs CPU", false),
    ("token_burst", "µs CPU", false),
    ("ttft_p50", "ms", true),
    ("gap_p99", "ms", true),
    ("ttft_p99", "ms", true),
];

impl Cell {
    /// All measurements, in order.
    pub(crate) const ALL: [Self; 10] = [
        Self::Latency,
        Self::Request(0),
        Self::Request(8 << 10),
        Self::Request(128 << 10),
        Self::Request(1 << 20),
        Self::Paced(64),
        Self::Paced(256),
        Self::Paced(1000),
        Self::Burst,
        Self::Stream,
    ];

    pub(crate) fn figures(self) -> &'static [&'static str] {
        match self {
            Self::Latency => &["latency_p50"],
            Self::Request(0) => &["request_tiny"],
            Self::Request(size) if size <= 8 << 10 => &["request_8k"],
            Self::Request(size) if size <= 128 << 10 => &["request_128k"],
            Self::Request(_) => &["request_1m"],
            Self::Paced(64) => &["token_64_streams"],
            Self::Paced(256) => &["token_256_streams"],
            Self::Paced(_) => &["token_1000_streams"],
            Self::Burst => &["token_burst"],
            Self::Stream => &["ttft_p50", "gap_p99", "ttft_p99"],
        }
    }

    /// Returns the time between tokens that the engines have to keep.
    pub(crate) fn gap(self) -> Duration {
        match self {
            Self::Paced(_) | Self::Stream => GAP,
            _ => Duration::ZERO,
        }
    }

    /// Returns whether contenders share the load in slices.
    pub(crate) fn is_sliced(self) -> bool {
        matches!(self, Self::Request(_) | Self::Burst)
    }

    pub(crate) fn shape(self, seed: u64) -> Shape {
        let (clients, size, tokens, stream) = match self {
            Self::Latency => (1, 0, 1, false),
            Self::Request(size) => (CLIENTS, size, 1, false),
            Self::Paced(streams) => (streams, 0, ENDLESS, true),
            Self::Burst => (CLIENTS, 0, BURST, true),
            Self::Stream => (CLIENTS, 0, SHORT, true),
        };
        // The streams' tokens are spread over time: in step, they would spare every proxy wake-ups.
        let spread = match self {
            Self::Paced(streams) => GAP.max(Duration::from_millis(streams as u64)),
            Self::Stream => GAP * SHORT,
            _ => Duration::ZERO,
        };
        Shape {
            clients,
            asked: Asked { size, tokens, stream },
            seed,
            spread,
            turns: 8,
            requests: u64::MAX,
        }
    }

    /// Measures `target` for about `time` and returns the figures named by [`Self::figures`]. Without a `process`
    /// (the target is an engine) costs are left out.
    pub(crate) async fn measure(
        self,
        target: SocketAddr,
        process: Option<&Process>,
        time: Duration,
        seed: u64,
    ) -> anyhow::Result<Vec<f64>> {
        let shape = self.shape(seed);
        match (self, process) {
            (Self::Latency, _) => {
                let mut times = timed(target, shape, time).await?;
                Ok(vec![quantile(&mut times.whole, 0.5) * 1e6])
            }
            (Self::Stream, _) => {
                let mut times = timed(target, shape, time + shape.spread).await?;
                let gap = quantile(&mut times.gaps, 0.99) * 1e3;
                let first = [0.5, 0.99].map(|q| quantile(&mut times.first, q) * 1e3);
                Ok(vec![first[0], gap, first[1]])
            }
            (Self::Paced(_), Some(process)) => Ok(vec![token(target, shape, process, time).await?]),
            (_, None) => Ok(Vec::new()),
            (Self::Request(_) | Self::Burst, Some(process)) => {
                let mut costs = in_slices(self, &[(target, process)], Slices::of(time), seed).await;
                Ok(vec![costs.remove(0)?])
            }
        }
    }
}

async fn timed(target: SocketAddr, shape: Shape, time: Duration) -> anyhow::Result<Times> {
    let mut load = Load::start(target, shape);
    load.run(time).await?;
    load.finish().await
}

/// Returns the microseconds per token of endless streams.
async fn token(target: SocketAddr, shape: Shape, process: &Process, time: Duration) -> anyhow::Result<f64> {
    let mut load = Load::start(target, shape);
    load.run(shape.spread + time / 8).await?;
    load.until(PATIENCE, |counts| {
        counts.begun.load(Ordering::Relaxed) >= shape.clients as u64
    })
    .await?;
    let done = |load: &Load| load.counts.events.load(Ordering::Relaxed);
    let (cpu, before) = (process.cpu()?, done(&load));
    load.run(time).await?;
    let per_token = per(process.cpu()? - cpu, done(&load) - before)?;
    drop(load);
    // Time for the servers to notice the disconnects.
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(per_token)
}

/// Returns the median; NaN for no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

pub(crate) fn per(cpu: Duration, done: u64) -> anyhow::Result<f64> {
    anyhow::ensure!(done > 0, "nothing was done in that time");
    Ok(cpu.as_secs_f64() * 1e6 / done as f64)
}

/// Returns the resident megabytes after ten thousand conversations of two turns, 8 KB each.
pub(crate) async fn resident_after_conversations(
    target: SocketAddr,
    process: &Process,
) -> anyhow::Result<f64> {
    let shape = Shape {
        clients: CLIENTS,
        asked: Asked {
            size: 8 << 10,
            tokens: 16,
            stream: true,
        },
        seed: 1 << 40,
        spread: Duration::ZERO,
        turns: TURNS_REMEMBERED,
        requests: (CONVERSATIONS * TURNS_REMEMBERED).div_ceil(CLIENTS as u64),
    };
    Load::start(target, shape).all().await?;
    Ok(megabytes(process))
}

pub(crate) fn megabytes(process: &Process) -> f64 {
    process.resident() as f64 / f64::from(1 << 20)
}
