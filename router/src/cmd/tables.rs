//! `tailroute tables --paper`: the T-LRU paper's tables on generated workloads, ours beside the printed figures.
//!
//! The paper's traces are samples that were not published, so agreement means that the same policies on a workload of
//! the same shape gain about as much in the same places, no more. Where the workloads' shape comes from, and which of
//! the printed figures took part in that, is told in `policy::simulate::generate`.

mod experiment;
mod paper;
mod plot;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;

use self::experiment::{Baseline, Cell, Column, Extent, Figure, QueueRow, Setting};
use self::paper::CAPACITIES;

/// Utilisations of the queueing table.
const UTILISATIONS: [f64; 5] = [0.005, 0.2, 0.4, 0.6, 0.8];

/// The T-LRU paper's tables on generated workloads, ours beside the printed figures
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tailroute tables --paper\n  tailroute tables --paper --out tables/")]
pub struct Args {
    /// Tables 1 to 6 of arXiv 2510.15152, and T-LRU against LRU on a queueing server.
    #[arg(long, required = true)]
    paper: bool,
    /// Seeds, from 1 on; spreads are standard deviations over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Turns per seed.
    #[arg(long, default_value_t = 2000)]
    turns: usize,
    /// Also write tables.md, tables.json and ttft.svg into this folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON instead of Markdown.
    #[arg(long)]
    json: bool,
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

/// Runs the experiments and prints the tables.
///
/// # Errors
/// If the tables cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let extent = Extent {
        seeds: args.seeds,
        turns: args.turns,
    };
    let table = |table: &experiment::PaperTable| Table {
        number: table.number,
        title: table.title,
        workload: table.setting,
        columns: table.columns.clone(),
        rows: experiment::cells(table, &CAPACITIES, extent),
    };
    let tables = paper::tables().iter().map(table).collect();
    let queueing = experiment::queueing(&UTILISATIONS, extent);
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
    super::print(if args.json { &json } else { &markdown })?;
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
