//! `tailroute top`: a running router on one screen, looked at again and again.
//!
//! It asks the admin port what anybody may ask: the workers, the metrics page, the objective, recent decisions, the audit log. Percentiles
//! are of the time between two looks, out of the histogram's buckets. `--once` prints one screen as text.

mod draw;
mod look;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::{Terminal, backend::TestBackend};

use self::look::Screen;
use crate::ctl::TargetArgs;
use crate::ctl::client::Client;

/// Size of the screen of `--once`.
const ONCE: (u16, u16) = (120, 40);

/// A running router on one screen: workers, TTFT, hottest prefixes, late turns and why, what was changed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute top\n  tailroute top --admin http://10.0.0.5:9090 --token-file ~/.tailroute-token\n\nq ends it."
)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0, value_parser = lab::args::positive)]
    interval_s: f64,
    /// Look once, print the screen as text, and end.
    #[arg(long)]
    once: bool,
}

/// Shows it until somebody types q.
///
/// # Errors
/// If there is no terminal, or with `--once` no router.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = args.target.target()?;
    let mut screen = Screen::new(target.authority());
    let client = Client::new(target)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    if args.once {
        runtime.block_on(screen.look(&client))?;
        lab::terminal::print(&text(&screen, ONCE)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = Duration::try_from_secs_f64(args.interval_s).context("--interval-s")?;
    let mut terminal = ratatui::try_init().context("no terminal; --once prints a screen as text")?;
    let shown = loop {
        // What cannot be had is said on the screen, and asked for again.
        let looked = runtime.block_on(screen.look(&client));
        screen.note(looked);
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &screen)) {
            break Err(error);
        }
        match wants_to_end(interval) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the next look. Whether somebody has typed q, Escape or Control-C meanwhile.
fn wants_to_end(interval: Duration) -> std::io::Result<bool> {
    let until = std::time::Instant::now() + interval;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        if !event::poll(left)? {
            return Ok(false);
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let control = key.modifiers.contains(event::KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
                KeyCode::Char('c') if control => return Ok(true),
                _ => {}
            }
        }
    }
}

/// One screen of this size as text.
fn text(screen: &Screen, (width, height): (u16, u16)) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw::draw(frame, screen))?;
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let line: String = (0..buffer.area.width)
            .filter_map(|x| buffer.cell((x, y)))
            .map(|cell| cell.symbol())
            .collect();
        line.trim_end().to_owned()
    };
    Ok((0..height)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned())
}

#[cfg(test)]
mod tests;
