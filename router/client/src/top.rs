//! `tailroute top`: a live view of a running router in a terminal.
//!
//! It polls the admin port for the workers, the metrics page, the objective, recent decisions and the audit log.
//! Percentiles cover the time between two polls and come from histogram buckets. `--once` prints one screen as text.

mod changes;
mod draw;
mod help;
mod look;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind};
use ratatui::layout::Size;
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};

use self::look::Screen;
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
    /// Seconds between two polls.
    #[arg(long, default_value_t = 1.0, value_parser = lab::args::positive)]
    interval_s: f64,
    /// Poll once, print the screen as text, and exit.
    #[arg(long)]
    once: bool,
}

/// Shows the screen until q is typed. Fails if there is no terminal, or with `--once` if the router cannot be reached.
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
    let mut terminal = ratatui::try_init().context("not a terminal; --once prints one screen as text")?;
    let shown = loop {
        // A failed poll is shown on the screen and retried.
        let looked = runtime.block_on(screen.look(&client));
        screen.note(looked);
        match show_until_ended(&mut terminal, &mut screen, interval) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the screen until the next poll is due. Returns whether the user wants to end.
fn show_until_ended(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    interval: Duration,
) -> std::io::Result<bool> {
    let until = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, screen))?;
        match typed(until)? {
            None => return Ok(false),
            Some(key) if screen.takes(key) => return Ok(true),
            Some(_) => {}
        }
    }
}

/// Waits for a key. Returns `None` at that time.
fn typed(until: Instant) -> std::io::Result<Option<KeyEvent>> {
    loop {
        if !event::poll(until.saturating_duration_since(Instant::now()))? {
            return Ok(None);
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => return Ok(Some(key)),
            // The terminal has another size.
            Event::Resize(..) => return Ok(Some(KeyEvent::from(KeyCode::Null))),
            _ => {}
        }
    }
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
