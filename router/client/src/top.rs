//! `tailroute top`: a live view of a running router in a terminal.
//!
//! The view polls the admin port for the workers, the policy, the metrics page, the objective, prefixes, late decisions
//! and the audit log. Percentiles cover the time between two polls and come from histogram buckets. `--once` prints one
//! screen as text.

mod changes;
mod draw;
mod follow;
mod help;
mod look;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::layout::Size;
use ratatui::{Terminal, backend::TestBackend};

use self::follow::{TerminalSession, follow, signals, typed};
use self::look::{Screen, poll};
use crate::ctl::TargetArgs;
use crate::ctl::client::Client;

const ONCE: Size = Size::new(120, 40);

/// Show a running router on one screen: workers, TTFT, hottest prefixes, late turns and their causes, changes
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute top\n  tailroute top --admin http://10.0.0.5:9090 --token-file ~/.tailroute-token\n\n? shows the keys and what the columns mean; q ends it."
)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Time between two polls, such as 2s; a number alone is seconds.
    #[arg(long, value_name = "TIME", default_value_t = 1.0, value_parser = simulator::args::seconds)]
    interval_s: f64,
    /// Poll once, print the screen as text, and exit.
    #[arg(long)]
    once: bool,
}

/// Shows the screen until q is typed, or a signal ends the program. Fails if there is no terminal, or with `--once` if
/// the router cannot be reached.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = args.target.target()?;
    let mut screen = Screen::new(target.authority());
    let client = Client::new(target)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    if args.once {
        screen.show(runtime.block_on(poll(&client))?);
        simulator::terminal::print(&text(&screen, ONCE)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = Duration::try_from_secs_f64(args.interval_s).context("--interval-s")?;
    runtime.block_on(async {
        let ended = signals()?;
        // Dropped on every way out, which restores the terminal; a panic does so by its hook.
        let mut session =
            TerminalSession::begin().context("not a terminal; --once prints one screen as text")?;
        let keys = typed().context("cannot read keys")?;
        let signal = follow(&mut session.terminal, &mut screen, &client, interval, keys, ended).await?;
        Ok(signal.map_or(ExitCode::SUCCESS, ExitCode::from))
    })
}

fn text(screen: &Screen, size: Size) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(size.width, size.height))?;
    terminal.draw(|frame| draw::draw(frame, screen))?;
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let line: String = (0..buffer.area.width)
            .filter_map(|x| buffer.cell((x, y)))
            .map(|cell| cell.symbol())
            .collect();
        line.trim_end().to_owned()
    };
    Ok((0..size.height)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned())
}

#[cfg(test)]
mod tests;
