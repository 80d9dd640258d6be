//! Measures the cost of telemetry: routers that differ only in telemetry, under the same load in turns. With
//! `--against`, compares two builds with telemetry off.
//!
//! One router has all telemetry off, one has all of it on, and with `--parts` there is one for each part alone. This
//! process is their collector and counts the received traces; their metrics are read once a second, as OpenMetrics.
//! Counting itself cannot be switched off, and is in both.
//!
//! Costs of the same load are compared within a round, because the machine's state varies between rounds. A new
//! process has a different memory layout, so the routers are restarted after some rounds, and are warmed up before
//! measurements: their bounded records of turns have to be full, or the first access of a page counts as a turn's
//! cost. The results are the medians of all rounds' ratios; a second router with all telemetry off shows the
//! variation by chance.

mod collector;
mod reader;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use self::collector::Collector;
use self::reader::Reader;
use self::verdict::{Samples, Verdict};
use crate::measure::Cell;
use crate::process::Process;
use crate::slices::{Slices, in_slices};
use crate::{Bench, pace, ready};

/// The figures: requests that cost little else, requests of a usual size, and tokens of streams.
const CELLS: [Cell; 4] = [
    Cell::Request(0),
    Cell::Request(8 << 10),
    Cell::Paced(256),
    Cell::Burst,
];
/// The figures for comparing builds.
const CELLS_OF_BUILDS: [Cell; 8] = [
    Cell::Request(0),
    Cell::Request(8 << 10),
    Cell::Request(128 << 10),
    Cell::Request(1 << 20),
    Cell::Paced(64),
    Cell::Paced(256),
    Cell::Paced(1000),
    Cell::Burst,
];
/// The metrics are read, and the last batch of traces is sent, once per second of a router's load, so a measurement
/// takes a second.
const MEASURE: Duration = Duration::from_secs(1);
/// Duration of streams that several builds run at the same time.
const AT_ONCE: Duration = Duration::from_secs(4);
/// The same in slices. Traces are sent some time after their requests. (The work outside slices, two thousandths of a
/// processor, is the same for all.)
const SLICES: Slices = Slices {
    each: Duration::from_millis(50),
    count: 20,
    all_counts: true,
};
/// Interval of reading a router's metrics, in time under load.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Duration of the warm-up with tiny requests: some tens of thousands.
const WARM_UP: Duration = Duration::from_secs(5);
/// Rounds between restarts of the routers.
const ROUNDS_OF_A_START: u32 = 4;
/// Highest cost ratio of all telemetry to none.
const BOUND: f64 = 1.08;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Variant {
    name: &'static str,
    /// Traces are sent to a collector.
    traces: bool,
    /// Decisions are kept for explanation.
    decisions: bool,
    /// The log has its default level.
    log: bool,
    /// Turns are captured in memory.
    capture: bool,
    /// Metrics are read.
    read: bool,
}

impl Variant {
    const OFF: Self = Self {
        name: "off",
        traces: false,
        decisions: false,
        log: false,
        capture: false,
        read: false,
    };
    /// The first variant again, to show the variation by chance.
    const AGAIN: Self = Self {
        name: "off_again",
        ..Self::OFF
    };
    /// Builds with telemetry off: the baseline, the baseline again, and the build under test.
    const BUILDS: [Self; 3] = [
        Self {
            name: "before",
            ..Self::OFF
        },
        Self {
            name: "before_again",
            ..Self::OFF
        },
        Self {
            name: "after",
            ..Self::OFF
        },
    ];
    const ON: Self = Self {
        name: "on",
        traces: true,
        decisions: true,
        log: true,
        capture: true,
        read: true,
    };
    const PARTS: [Self; 5] = [
        Self {
            name: "traces",
            traces: true,
            ..Self::OFF
        },
        Self {
            name: "decisions",
            decisions: true,
            ..Self::OFF
        },
        Self {
            name: "capture",
            capture: true,
            ..Self::OFF
        },
        Self {
            name: "log",
            log: true,
            ..Self::OFF
        },
        Self {
            name: "metrics_read",
            read: true,
            ..Self::OFF
        },
    ];

    fn config(self, port: u16, engines: &[SocketAddr], collector: SocketAddr) -> String {
        let mut text = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n[log]\nformat = \"json\"\nlevel = \"{}\"\n",
            port + 1,
            if self.log { "info" } else { "warn" },
        );
        if self.traces {
            let _ = write!(text, "[traces]\nendpoint = \"http://{collector}\"\n");
        }
        if !self.decisions {
            text.push_str("[explain]\nmax_bytes = 0\n");
        }
        for engine in engines {
            let _ = write!(text, "[[workers]]\nurl = \"http://{engine}\"\n");
        }
        text
    }
}

/// A router under measurement.
struct Router {
    variant: Variant,
    address: SocketAddr,
    process: Process,
    reader: Option<Reader>,
}

/// Measures and prints. Returns whether the promise holds.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<bool> {
    let variants = variants(bench);
    let _engines = bench.start_engines().await?;
    let collector = Collector::start().await?;
    let mut samples = Samples::default();
    let mut routers = Vec::new();
    for round in 0..bench.args.rounds {
        if round % ROUNDS_OF_A_START == 0 {
            routers.clear();
            for &variant in &variants {
                let router = start(bench, variant, collector.address(), variants.len()).await?;
                warm_up(bench, &router).await?;
                routers.push(router);
            }
        }
        // The order rotates, so that no router always follows another figure's load.
        routers.rotate_left(1);
        let cells = match bench.args.against {
            Some(_) => &CELLS_OF_BUILDS[..],
            None => &CELLS,
        };
        for &cell in cells {
            if bench.is_wanted(cell.figures()) {
                measure(bench, (round, cell), &routers, &mut samples).await?;
            }
        }
    }
    drop(routers);
    anyhow::ensure!(
        collector.traces() > 0 || bench.args.against.is_some(),
        "no trace has come: what was measured was not all of it"
    );
    let verdicts = samples.verdicts(variants[0].name, BOUND);
    print_all(
        &verdicts,
        bench.args.json,
        variants.contains(&Variant::ON).then(|| collector.traces()),
    );
    Ok(verdicts.iter().all(Verdict::holds))
}

/// Returns the variants to compare, beginning with the baseline: telemetry on and off, or two builds without.
fn variants(bench: &Bench) -> Vec<Variant> {
    if bench.args.against.is_some() {
        return Variant::BUILDS.to_vec();
    }
    let mut variants = vec![Variant::OFF, Variant::AGAIN, Variant::ON];
    if bench.args.parts {
        variants.extend(Variant::PARTS);
    }
    variants
}

async fn start(
    bench: &mut Bench,
    variant: Variant,
    collector: SocketAddr,
    routers: usize,
) -> anyhow::Result<Router> {
    let port = bench.port();
    let config = bench.places.folder.join(format!("{}-{port}.toml", variant.name));
    std::fs::write(&config, variant.config(port, &bench.engines, collector))?;
    let bin = match &bench.args.against {
        Some(against) if variant != Variant::BUILDS[2] => against,
        _ => &bench.places.bin,
    };
    let mut command = Command::new(bin.join("tailroute"));
    command.args(["serve", "--config"]).arg(&config);
    let log = config.with_extension("log");
    let mut process = Process::start(command, &log, bench.cores.proxy, bench.cores.load)?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let admin = SocketAddr::from(([127, 0, 0, 1], port + 1));
    ready(address, Some((&mut process, &log)))
        .await
        .with_context(|| format!("the router that is {}", variant.name))?;
    if variant.capture {
        reader::start_capture(admin).await?;
    }
    Ok(Router {
        variant,
        address,
        process,
        // Each router has the load for its share of the time.
        reader: variant
            .read
            .then(|| Reader::start(admin, READ_EVERY * routers as u32)),
    })
}

async fn warm_up(bench: &mut Bench, router: &Router) -> anyhow::Result<()> {
    let cell = Cell::Request(0);
    pace(&bench.engines, cell.gap()).await?;
    bench.seed += 1 << 20;
    cell.measure(router.address, Some(&router.process), WARM_UP, bench.seed)
        .await
        .with_context(|| format!("the warm-up of the router that is {}", router.variant.name))?;
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    (round, cell): (u32, Cell),
    routers: &[Router],
    samples: &mut Samples,
) -> anyhow::Result<()> {
    pace(&bench.engines, cell.gap()).await?;
    bench.seed += 1 << 20;
    let figure = cell.figures()[0];
    let mut costs = BTreeMap::new();
    if !cell.is_sliced() && bench.args.against.is_some() {
        // Endless streams cannot be sliced: all routers run them at the same time and share the machine's disturbances.
        let measuring = routers
            .iter()
            .map(|router| cell.measure(router.address, Some(&router.process), AT_ONCE, bench.seed));
        let measured = futures_util::future::join_all(measuring).await;
        for (router, cost) in routers.iter().zip(measured) {
            let name = router.variant.name;
            let cost = cost.with_context(|| format!("{figure} of the router that is {name}"))?;
            costs.insert(name, cost[0]);
        }
    } else if !cell.is_sliced() {
        for router in routers {
            let name = router.variant.name;
            // All routers get the same conversations, and their metrics are read once in the middle.
            let measured = cell.measure(router.address, Some(&router.process), MEASURE, bench.seed);
            let read = async {
                tokio::time::sleep(cell.shape(0).spread + MEASURE / 2).await;
                match &router.reader {
                    Some(reader) => reader.read().await,
                    None => Ok(()),
                }
            };
            let (measured, read) = tokio::join!(measured, read);
            let measured = read.and(measured);
            let measured = measured.with_context(|| format!("{figure} of the router that is {name}"))?;
            costs.insert(name, measured[0]);
        }
    } else {
        let targets: Vec<_> = routers
            .iter()
            .map(|router| (router.address, &router.process))
            .collect();
        let measured = in_slices(cell, &targets, SLICES, bench.seed).await;
        for (router, cost) in routers.iter().zip(measured) {
            let name = router.variant.name;
            costs.insert(
                name,
                cost.with_context(|| format!("{figure} of the router that is {name}"))?,
            );
        }
    }
    let told = costs.iter().map(|(name, cost)| format!(" {name} {cost:.2}"));
    bench.say(&format!(
        "round {}, {figure}:{}",
        round + 1,
        told.collect::<String>()
    ));
    samples.add(figure, &costs);
    Ok(())
}

/// Prints the verdicts. `traces` is the number of traces received, if any were expected.
fn print_all(verdicts: &[Verdict], json: bool, traces: Option<u64>) {
    if json {
        for verdict in verdicts {
            println!("{}", verdict.json());
        }
        if let Some(traces) = traces {
            println!("{}", serde_json::json!({ "traces_received": traces }));
        }
        return;
    }
    println!(
        "| figure | router | µs CPU | the first one's | ratio | bound | |\n|---|---|---:|---:|---:|---:|---|"
    );
    for verdict in verdicts {
        println!("{}", verdict.row());
    }
    if let Some(traces) = traces {
        println!("\n{traces} traces have come.");
    }
}
