//! `tailroute-lab tables`: the tables of the documents. `--routing` compares the routing policies (see `routing`),
//! `--agents` plays coding agents (see `agents`), `--frontier` trades the tail against the median (see `frontier`), and
//! `--paper` prints the T-LRU paper's tables on generated workloads,
//! beside its figures. The paper's traces were not published, so agreement means similar gains in the same places.

mod agents;
mod experiment;
mod frontier;
mod paper;
mod plot;
mod pool;
mod routing;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use simulator::generate::BadWorkload;

use self::experiment::{Baseline, Cell, Column, Extent, Figure, QueueRow, Setting};
use self::paper::CAPACITIES;
use simulator::trace_source::{TraceSource, named};

const UTILISATIONS: [f64; 5] = [0.005, 0.2, 0.4, 0.6, 0.8];

/// Print the tables of the documents: routing policies, agents, or the T-LRU paper's tables
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute-lab tables --routing --trace mooncake_conv.jsonl.gz --seeds 1,2,3 --svg routing.svg\n  \
    tailroute-lab tables --agents --seeds 1,2,3\n  \
    tailroute-lab tables --frontier --trace mooncake_conv.jsonl.gz --svg frontier.svg\n  \
    tailroute-lab tables --paper\n  tailroute-lab tables --paper --out tables/")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Seeds: a number N for 1 to N, or a list such as 4,5,6. Defaults to 1 to 5 for --paper and to 1 to 3 for the
    /// others.
    #[arg(long)]
    seeds: Option<Seeds>,
    /// Number of turns. For --paper and --agents per seed (default 2000 and 6000); for --routing and --frontier of the
    /// trace (default: all of a file, 2000 of a generator).
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    turns: Option<usize>,
    /// With --routing and --frontier: the trace (turn trace, capture, Mooncake or Bailian; plain or gzip), or a generator such as
    /// hot:SEED or gen:agentic:SEED. Without it a generated workload is played.
    #[arg(long, value_name = "FILE", value_parser = named, conflicts_with_all = ["paper", "agents"])]
    trace: Option<(String, TraceSource)>,
    /// With --routing: also draw p95 by policy and cell into this file. With --frontier: also draw it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paper", "agents"])]
    svg: Option<PathBuf>,
    /// Also write tables.md, tables.json and ttft.svg into this folder.
    #[arg(long, conflicts_with_all = ["routing", "agents", "frontier"])]
    out: Option<PathBuf>,
    /// Print JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// The tables to print.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Routing policies and weights in twelve cells: 4 and 8 workers, 1,000 and 8,000 blocks, loads 0.5, 0.8 and 1.1.
    #[arg(long)]
    routing: bool,
    /// Coding agents' tail against cache_aware's at four loads.
    #[arg(long)]
    agents: bool,
    /// p50 against p95 by the weights that cache policies give to all prefill.
    #[arg(long)]
    frontier: bool,
    /// Tables 1 to 6 of arXiv 2510.15152, and T-LRU against LRU on a queueing server.
    #[arg(long)]
    paper: bool,
}

/// Seeds, as `3` or `4,5,6`.
#[derive(Clone, Debug, PartialEq)]
struct Seeds(Vec<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || "a number of seeds from 1 to 1000, or a list of seeds such as 4,5,6, expected".to_owned();
        let list: Vec<u64> = text
            .split(',')
            .map(|seed| seed.trim().parse().map_err(|_| refused()))
            .collect::<Result<_, _>>()?;
        match list.as_slice() {
            [count @ 1..=1000] => Ok(Self((1..=*count).collect())),
            [_, _, ..] if list.len() <= 1000 => Ok(Self(list)),
            _ => Err(refused()),
        }
    }
}

#[derive(Serialize)]
struct Report {
    extent: Extent,
    capacities: [u64; 6],
    tables: Vec<Table>,
    queueing: Vec<QueueRow>,
}

#[derive(Serialize)]
struct Table {
    number: u32,
    title: &'static str,
    workload: Setting,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// Runs the experiments and prints the tables. Fails if the tables cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match &args.which {
        Which { routing: true, .. } => routing(&args),
        Which { agents: true, .. } => agents(&args),
        Which { frontier: true, .. } => frontier(&args),
        _ => paper(&args),
    }
}

impl Args {
    fn seeds(&self) -> Seeds {
        self.seeds.clone().unwrap_or(Seeds(vec![1, 2, 3]))
    }

    fn print<R: Serialize>(&self, report: &R, markdown: fn(&R) -> String) -> anyhow::Result<ExitCode> {
        let text = if self.json {
            serde_json::to_string_pretty(report)?
        } else {
            markdown(report)
        };
        simulator::terminal::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn agents(args: &Args) -> anyhow::Result<ExitCode> {
    args.print(&agents::measure(args.turns, &args.seeds())?, agents::markdown)
}

fn routing(args: &Args) -> anyhow::Result<ExitCode> {
    let report = routing::measure(args.trace.as_ref(), args.turns, &args.seeds())?;
    if let Some(path) = &args.svg {
        let drawn = routing::svg(&report);
        std::fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    }
    args.print(&report, routing::markdown)
}

fn frontier(args: &Args) -> anyhow::Result<ExitCode> {
    let report = frontier::measure(args.trace.as_ref(), args.turns, &args.seeds())?;
    if let Some(path) = &args.svg {
        let drawn = frontier::svg(&report)?;
        std::fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    }
    args.print(&report, frontier::markdown)
}

fn paper(args: &Args) -> anyhow::Result<ExitCode> {
    let seeds = args.seeds.as_ref().map_or(5, |seeds| seeds.0.len() as u64);
    let first = |seeds: &Seeds| seeds.0.iter().copied().eq(1..=seeds.0.len() as u64);
    anyhow::ensure!(
        args.seeds.as_ref().is_none_or(first),
        "--paper takes a number of seeds, not a list"
    );
    let extent = Extent {
        seeds,
        turns: args.turns.unwrap_or(2000),
    };
    let table = |table: &experiment::PaperTable| {
        Ok(Table {
            number: table.number,
            title: table.title,
            workload: table.setting,
            columns: table.columns.clone(),
            rows: experiment::cells(table, &CAPACITIES, extent)?,
        })
    };
    let tables = paper::tables()
        .iter()
        .map(table)
        .collect::<Result<_, BadWorkload>>()?;
    let queueing = experiment::queueing(&UTILISATIONS, extent)?;
    let report = Report {
        extent,
        capacities: CAPACITIES,
        tables,
        queueing,
    };
    let (markdown, json) = (markdown(&report), serde_json::to_string_pretty(&report)?);
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let svg = plot::svg(&plot::curves(extent)?)?;
        for (name, text) in [
            ("tables.md", &markdown),
            ("tables.json", &json),
            ("ttft.svg", &svg),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    simulator::terminal::print(if args.json { &json } else { &markdown })?;
    Ok(ExitCode::SUCCESS)
}

fn markdown(report: &Report) -> String {
    let Extent { seeds, turns } = report.extent;
    let mut text = format!(
        "Improvement in per cent, ours ± standard deviation over {seeds} seeds of {turns} turns, and in brackets what \
         the paper prints.\nThe paper's traces are not published; the workloads are generated.\n"
    );
    for table in &report.tables {
        let workload = match table.workload {
            Setting::Wildchat => "WildChat",
            Setting::Sharegpt => "ShareGPT",
        };
        text += &format!(
            "\n## Table {}. {} ({workload})\n\n| capacity |",
            table.number, table.title
        );
        table
            .columns
            .iter()
            .for_each(|column| text += &format!(" {} |", heading(column)));
        text += &format!("\n|---:|{}\n", "---:|".repeat(table.columns.len()));
        for (capacity, row) in report.capacities.iter().zip(&table.rows) {
            text += &format!("| {capacity} |");
            for Cell {
                ours,
                spread,
                printed,
            } in row
            {
                text += &format!(" {ours:.1} ± {spread:.1} ({printed:.1}) |");
            }
            text.push('\n');
        }
    }
    text += "\n## T-LRU against LRU on one FIFO server (WildChat, C = 10,000, ξ_s = 150 ms)\n\n\
             Change of p95 TTFT, waiting included; positive is worse. Time is scaled until LRU keeps the server busy \
             for the given share. Turns keep the order and the gaps of the trace.\n\n\
             | utilisation | p95 change % | T-LRU's utilisation |\n|---:|---:|---:|\n";
    for row in &report.queueing {
        let QueueRow {
            utilisation,
            p95_change,
            spread,
            t_lru_utilisation,
        } = row;
        text += &format!("| {utilisation} | {p95_change:+.1} ± {spread:.1} | {t_lru_utilisation:.3} |\n");
    }
    text
}

fn heading(column: &Column) -> String {
    let figure = match (column.figure, column.against) {
        (Figure::P90, _) => "p90",
        (Figure::P95, _) => "p95",
        (Figure::P99, _) => "p99",
        (Figure::Violations, Baseline::Lru) => "LRU",
        (Figure::Violations, Baseline::ThresholdLru) => "Thre-LRU",
    };
    format!("ξ={} {figure}", column.xi_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_list() {
        let seeds = |text: &str| text.parse::<Seeds>().map(|seeds| seeds.0);
        assert_eq!(seeds("3"), Ok(vec![1, 2, 3]));
        assert_eq!(seeds("4,5,6"), Ok(vec![4, 5, 6]));
        for bad in ["0", "", "x", "1001", "1,,2"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_printed_figure_has_a_column() {
        for table in paper::tables() {
            assert!(
                table.printed.iter().all(|row| row.len() == table.columns.len()),
                "table {}",
                table.number
            );
        }
    }

    #[test]
    fn the_plot_names_every_policy() {
        let svg = plot::svg(&plot::curves(Extent { seeds: 1, turns: 200 }).unwrap()).unwrap();
        assert!(
            ["t-lru", "to-belady", "et-lru"]
                .iter()
                .all(|policy| svg.contains(policy))
                && svg.contains("</svg>")
        );
    }
}
