//! Measures the router's overhead as a proxy, side by side with other proxies and routers.
//!
//! One processor runs the contender, the other runs the load and the engines. Every figure is measured for all
//! contenders one after the other (costs of requests in [slices] of a quarter of a second), in several rounds, so
//! that disturbances of the machine affect all of them. The results are medians.
//!
//! Rejected: *requests per second at full load*. On a shared machine it depends on the neighbours as much as on the
//! proxy, and with the load on the same machine, the load is the bottleneck once the proxy is faster.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program whose output is its purpose"
)]

mod body;
mod contender;
mod load;
mod measure;
mod process;
mod report;
mod slices;
mod telemetry;
mod wire;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use clap::builder::PossibleValuesParser;

use body::Asked;
use contender::{Contender, Places};
use load::{Load, Shape};
use measure::{Cell, FIGURES};
use process::{Cores, Process};
use report::{RSS_AFTER, RSS_IDLE, Report};
use slices::{Slices, in_slices};

/// Timeout of a contender's first response. Python is slow to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Time for a contender to finish its startup work.
const SETTLE: Duration = Duration::from_secs(1);
const ENGINES: u16 = 2;

/// Measures the router's overhead as a proxy, beside its peers.
#[derive(Debug, Parser)]
struct Args {
    /// Take shorter measurements.
    #[arg(long)]
    quick: bool,
    /// Print JSON lines instead of tables.
    #[arg(long)]
    json: bool,
    /// Measurements per figure.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Measure only these contenders.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only these figures.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(figures()), hide_possible_values = true)]
    figures: Vec<String>,
    /// Milliseconds per measurement; overrides --quick.
    #[arg(long)]
    time_ms: Option<u64>,
    /// Folder of `tailroute` and `sim-engine`.
    #[arg(long, default_value = "target/dist")]
    bin: PathBuf,
    /// Environment of the peers from PyPI.
    #[arg(long, default_value = ".")]
    peers: PathBuf,
    /// Measure telemetry instead: the router with all of it off, and with all of it on, in turns.
    #[arg(long)]
    telemetry: bool,
    /// With --telemetry: also measure each part of it alone.
    #[arg(long, requires = "telemetry")]
    parts: bool,
    /// Folder of another `tailroute` to compare the one in --bin with: requests and tokens of both in turns, without
    /// peers.
    #[arg(long, conflicts_with = "telemetry")]
    against: Option<PathBuf>,
    /// First of the ports to use.
    #[arg(long, default_value_t = 19_000)]
    port: u16,
}

/// Returns the names of all figures.
fn figures() -> impl Iterator<Item = &'static str> {
    let measured = FIGURES.iter().map(|&(name, ..)| name);
    measured.chain([RSS_IDLE, RSS_AFTER])
}

struct Running {
    contender: Contender,
    address: SocketAddr,
    process: Option<Process>,
}

struct Bench {
    args: Args,
    places: Places,
    cores: Cores,
    engines: Vec<SocketAddr>,
    report: Report,
    begun: Instant,
    next_port: u16,
    seed: u64,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> anyhow::Result<bool> {
    let folder = std::env::temp_dir().join(format!("bench-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let cores = Cores::find()?;
    process::pin(cores.load)?;
    let places = Places {
        bin: args.bin.clone(),
        peers: args.peers.clone(),
        folder: folder.clone(),
    };
    let mut bench = Bench {
        next_port: args.port,
        args,
        places,
        cores,
        engines: Vec::new(),
        report: Report::default(),
        begun: Instant::now(),
        seed: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if bench.args.telemetry || bench.args.against.is_some() {
        let holds = runtime.block_on(telemetry::run(&mut bench));
        let holds = holds.with_context(|| format!("see {}", folder.display()))?;
        std::fs::remove_dir_all(&folder)?;
        return Ok(holds);
    }
    let done = runtime.block_on(bench.all());
    let report = &bench.report;
    print!(
        "{}",
        if bench.args.json {
            report.json()
        } else {
            report.table()
        }
    );
    match done {
        Ok(()) => std::fs::remove_dir_all(&folder)?,
        // The servers' logs may explain the error.
        Err(error) => return Err(error.context(format!("see {}", folder.display()))),
    }
    Ok(report.holds())
}

impl Bench {
    fn say(&self, what: &str) {
        eprintln!("bench {:>4} s: {what}", self.begun.elapsed().as_secs());
    }

    fn port(&mut self) -> u16 {
        self.next_port += 2;
        self.next_port - 2
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        if self.cores.proxy == self.cores.load {
            self.say("one processor for all: figures of cost hold, those of time do not");
        }
        let _engines = self.start_engines().await?;
        let contenders = self.who_is_here()?;
        let mut running = Vec::new();
        for &contender in &contenders {
            running.push(self.start(contender).await?);
        }
        tokio::time::sleep(SETTLE).await;
        for round in 1..=self.args.rounds {
            for cell in Cell::ALL {
                if self.is_wanted(cell.figures()) {
                    self.cell(round, cell, &running).await?;
                }
            }
        }
        drop(running);
        if self.is_wanted(&[RSS_IDLE, RSS_AFTER]) {
            pace(&self.engines, Duration::ZERO).await?;
            for contender in contenders {
                self.memory(contender).await?;
            }
        }
        Ok(())
    }

    /// Starts engines on the load's processor. Dropping the processes ends them.
    async fn start_engines(&mut self) -> anyhow::Result<Vec<Process>> {
        let load = self.cores.load;
        let mut engines = Vec::new();
        for number in 0..ENGINES {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
            let mut command = Command::new(self.places.bin.join("sim-engine"));
            command.args(["--fast", "--listen", &address.to_string()]);
            let log = self.places.folder.join(format!("engine-{number}.log"));
            engines.push(Process::start(command, &log, load, load)?);
            self.engines.push(address);
            ready(address, None).await?;
        }
        Ok(engines)
    }

    fn is_wanted(&self, figures: &[&str]) -> bool {
        let asked = &self.args.figures;
        asked.is_empty() || asked.iter().any(|asked| figures.contains(&asked.as_str()))
    }

    fn who_is_here(&mut self) -> anyhow::Result<Vec<Contender>> {
        let names: Vec<&str> = Contender::ALL.iter().map(|contender| contender.name()).collect();
        if let Some(unknown) = self.args.only.iter().find(|name| !names.contains(&name.as_str())) {
            anyhow::bail!("there is no {unknown}; there are {}", names.join(", "));
        }
        for contender in Contender::ALL {
            let named = |name: &String| name == contender.name();
            let only = &self.args.only;
            if !(only.is_empty() || contender == Contender::Direct || only.iter().any(named)) {
                continue;
            }
            match contender.version(&self.places) {
                Ok(version) => drop(self.report.present.insert(contender, version)),
                Err(error) => {
                    self.say(&format!("{} is left out: {error:#}", contender.name()));
                    self.report.absent.insert(contender, format!("{error:#}"));
                }
            }
        }
        anyhow::ensure!(
            !self.report.absent.contains_key(&Contender::Tailroute),
            "there is no tailroute in {}",
            self.places.bin.display()
        );
        Ok(self.report.present.keys().copied().collect())
    }

    async fn start(&mut self, contender: Contender) -> anyhow::Result<Running> {
        let port = self.port();
        let mut running = Running {
            contender,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            process: None,
        };
        match contender.command(&self.places, port, &self.engines)? {
            None => running.address = self.engines[0],
            Some(command) => {
                self.say(&format!("starting {}", contender.name()));
                let log = self.places.folder.join(format!("{}.log", contender.name()));
                let process = Process::start(command, &log, self.cores.proxy, self.cores.load)?;
                let process = running.process.insert(process);
                ready(running.address, Some((process, &log))).await?;
            }
        }
        Ok(running)
    }

    fn time(&self, cell: Cell) -> Duration {
        let ms = match (self.args.time_ms, self.args.quick) {
            (Some(ms), _) => ms,
            (None, true) => 500,
            (None, false) => 2500,
        };
        match cell {
            // These figures consist of a thousand tokens or a hundred streams.
            Cell::Paced(64) | Cell::Stream => Duration::from_millis(ms * 2),
            _ => Duration::from_millis(ms),
        }
    }

    async fn cell(&mut self, round: u32, cell: Cell, running: &[Running]) -> anyhow::Result<()> {
        pace(&self.engines, cell.gap()).await?;
        self.seed += 1 << 20;
        let time = self.time(cell);
        if cell.is_sliced() {
            let named = running
                .iter()
                .filter_map(|one| Some((one.contender, one.address, one.process.as_ref()?)));
            let (names, targets): (Vec<_>, Vec<_>) = named
                .map(|(contender, address, process)| (contender, (address, process)))
                .unzip();
            let costs = in_slices(cell, &targets, Slices::of(time), self.seed).await;
            for (contender, cost) in names.into_iter().zip(costs) {
                self.add(round, cell, contender, cost.map(|cost| vec![cost]))?;
            }
            return Ok(());
        }
        for one in running {
            self.seed += 1 << 20;
            let measured = cell
                .measure(one.address, one.process.as_ref(), time, self.seed)
                .await;
            self.add(round, cell, one.contender, measured)?;
        }
        Ok(())
    }

    /// Adds a measurement. A contender that fails under a load has no value for this figure only.
    fn add(
        &mut self,
        round: u32,
        cell: Cell,
        contender: Contender,
        measured: anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<()> {
        let (names, who) = (cell.figures(), contender.name());
        let measured = match measured {
            Ok(measured) => measured,
            Err(error) if contender != Contender::Tailroute => {
                self.say(&format!("{} of {who} failed: {error:#}", names[0]));
                return Ok(());
            }
            Err(error) => return Err(error.context(names[0])),
        };
        for (&name, &value) in names.iter().zip(&measured) {
            self.report.add(contender, name, value);
        }
        if let Some(first) = measured.first() {
            self.say(&format!("round {round}, {}: {who} {first:.2}", names[0]));
        }
        Ok(())
    }

    /// Measures memory in a fresh process.
    async fn memory(&mut self, contender: Contender) -> anyhow::Result<()> {
        let running = self.start(contender).await?;
        let Some(process) = &running.process else {
            return Ok(());
        };
        tokio::time::sleep(SETTLE).await;
        let idle = measure::megabytes(process);
        let after = measure::resident_after_conversations(running.address, process).await?;
        self.report.add(contender, RSS_IDLE, idle);
        self.report.add(contender, RSS_AFTER, after);
        let name = contender.name();
        self.say(&format!(
            "memory of {name}: {idle:.1} MB idle, {after:.1} MB after"
        ));
        Ok(())
    }
}

/// Waits until a server answers a turn.
async fn ready(address: SocketAddr, process: Option<(&mut Process, &Path)>) -> anyhow::Result<()> {
    let until = Instant::now() + START_LIMIT;
    let mut process = process;
    loop {
        if let Some((process, log)) = &mut process
            && process.has_ended()
        {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            anyhow::bail!("it ended at once: {}", said.trim());
        }
        let shape = Shape {
            clients: 1,
            asked: Asked {
                size: 0,
                tokens: 1,
                stream: false,
            },
            seed: 0,
            spread: Duration::ZERO,
            turns: 1,
            requests: 1,
        };
        let asked = async { Load::start(address, shape).all().await };
        match tokio::time::timeout(Duration::from_secs(2), asked).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if Instant::now() > until => return Err(error.context("it does not answer")),
            Err(_) if Instant::now() > until => anyhow::bail!("it does not answer"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn pace(engines: &[SocketAddr], gap: Duration) -> anyhow::Result<()> {
    use std::io::{Read as _, Write as _};
    for engine in engines {
        let body = format!("{{\"gap_ms\":{}}}", gap.as_secs_f64() * 1e3);
        let mut stream = TcpStream::connect(engine)?;
        write!(
            stream,
            "PUT /sim/pace HTTP/1.1\r\nhost: {engine}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        anyhow::ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "the engine answered: {answer}"
        );
    }
    Ok(())
}
