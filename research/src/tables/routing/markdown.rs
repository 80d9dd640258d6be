//! The tables as Markdown.

use std::fmt::Write as _;

use super::grid::{Cell, Contender, VARIANTS, WEIGHT_CELLS};
use super::{CELLS, Changes, Report, Spread};

pub(in super::super) fn markdown(report: &Report) -> String {
    let mut text = preamble(report);
    text += "\n## Change of `tail` (with hints, the default) in per cent; negative is better\n\n\
             | W / blocks / load | p95 (tree) | p99 (tree) | p95 (index) | p99 (index) | p95 against `least_ttft` \
             | p95, p99, mean against itself on LRU |\n|---|---|---|---|---|---|---|\n";
    for cell in &report.cells {
        let against = |contender: Contender| cell.tail_against.get(contender.name());
        let (Some(tree), Some(index), Some(least), Some(lru)) = (
            against(Contender::CacheAwareTree),
            against(Contender::CacheAwareIndex),
            against(Contender::LeastTtft),
            against(Contender::TailLru),
        ) else {
            continue;
        };
        let Changes { p95, p99, mean } = lru;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {:+.1}, {:+.1}, {:+.1} |",
            name(&cell.cell),
            of_means(&tree.p95),
            of_means(&tree.p99),
            of_means(&index.p95),
            of_means(&index.p99),
            of_means(&least.p95),
            p95.means,
            p99.means,
            mean.means,
        );
    }
    text += &priorities(report);
    text += &aims(report);
    text += &absolute(report);
    text += &weights(report);
    text
}

fn preamble(report: &Report) -> String {
    let seeds: Vec<_> = report.seeds.iter().map(u64::to_string).collect();
    let made_up = if report.generated {
        " No trace was given, so this one is made up: the figures say how the rule behaves on it, not on real traffic."
    } else {
        ""
    };
    format!(
        "{} turns of {}, {} tokens per block, α = 0.05 ms per token, β = 0, prefill only, objective {} ms; seeds {}: \
         changes of the means over them, and in brackets the least and the largest of one.{made_up}\n",
        report.turns,
        report.trace,
        report.block_tokens,
        report.objective_ms,
        seeds.join(", "),
    )
}

fn priorities(report: &Report) -> String {
    let mut text = "\n## The same on engines that take priorities, against the others first come first served\n\n\
                    | W / blocks / load | p95 (tree) | p99 (tree) | p95 against `least_ttft` | p99 against `least_ttft` \
                    | p95, p99, mean against the default |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for cell in &report.cells {
        let against = |contender: Contender| cell.priority_against.get(contender.name());
        let (Some(tree), Some(least), Some(tail)) = (
            against(Contender::CacheAwareTree),
            against(Contender::LeastTtft),
            against(Contender::Tail),
        ) else {
            continue;
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:+.1}, {:+.1}, {:+.1} |",
            name(&cell.cell),
            of_means(&tree.p95),
            of_means(&tree.p99),
            of_means(&least.p95),
            of_means(&least.p99),
            tail.p95.means,
            tail.p99.means,
            tail.mean.means,
        );
    }
    text
}

fn aims(report: &Report) -> String {
    let mut text = "\n| aim | cells that meet it |\n|---|---|\n".to_owned();
    for aim in &report.aims {
        let _ = writeln!(text, "| {} | {} of {} |", aim.aim, aim.met, aim.of);
    }
    text
}

fn absolute(report: &Report) -> String {
    let mut text = "\n## p95 TTFT in ms\n\n| W / blocks / load |".to_owned();
    for contender in Contender::ALL {
        let _ = write!(text, " {} |", contender.label());
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(Contender::ALL.len()));
    for cell in &report.cells {
        let _ = write!(text, "| {} |", name(&cell.cell));
        for contender in Contender::ALL {
            let figures = cell.contenders.get(contender.name());
            let samples = figures.into_iter().flatten().map(|figures| figures.p95_ms);
            let _ = write!(text, " {:.0} |", Spread::of(samples.collect()).median);
        }
        text.push('\n');
    }
    text
}

fn weights(report: &Report) -> String {
    let cells: Vec<_> = WEIGHT_CELLS.iter().map(|at| name(&CELLS[*at])).collect();
    let mut text = format!(
        "\n## Weights, one at a time\n\nChange against the defaults in per cent over {} and the seeds: medians, and in brackets the least \
         and the largest; {} other settings.\n\n\
         | weight | value | p95 | p99 | mean |\n|---|---:|---|---|---|\n",
        cells.join(", "),
        VARIANTS.len(),
    );
    for row in &report.weights {
        let Changes { p95, p99, mean } = &row.change;
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            row.weight,
            row.value,
            spread(p95),
            spread(p99),
            spread(mean)
        );
    }
    text
}

fn name(cell: &Cell) -> String {
    let (thousands, rest) = (cell.blocks / 1000, cell.blocks % 1000);
    format!("{} / {thousands},{rest:03} / {}", cell.workers, cell.load)
}

fn spread(spread: &Spread) -> String {
    if spread.least == spread.most {
        return format!("{:+.1}", spread.median);
    }
    format!(
        "{:+.1} ({:+.1} … {:+.1})",
        spread.median, spread.least, spread.most
    )
}

fn of_means(spread: &Spread) -> String {
    if spread.least == spread.most {
        return format!("{:+.1}", spread.means);
    }
    format!(
        "{:+.1} ({:+.1} … {:+.1})",
        spread.means, spread.least, spread.most
    )
}
