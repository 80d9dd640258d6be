//! The live view. Polls, keys and signals are awaited together, so that the view can be ended while the router does not
//! answer.

use std::io;
use std::time::Duration;

use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::{DefaultTerminal, Terminal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::draw;
use super::look::{Polled, Screen, poll};
use crate::ctl::client::Client;

/// Interval of drawing while a poll is not answered.
const PATIENCE: Duration = Duration::from_secs(1);

/// A terminal in raw mode on its second screen. Dropping it restores the terminal.
pub(super) struct TerminalSession {
    pub(super) terminal: DefaultTerminal,
}

impl TerminalSession {
    pub(super) fn begin() -> io::Result<Self> {
        let begun = ratatui::try_init();
        if begun.is_err() {
            // Raw mode may have been entered already.
            let _ = ratatui::try_restore();
        }
        Ok(Self { terminal: begun? })
    }
}

impl Drop for TerminalSession {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Returns a future of the exit code that the first signal to end the program demands.
pub(super) fn signals() -> io::Result<impl Future<Output = u8>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => 128 + 15,
            _ = int.recv() => 128 + 2,
            _ = hangup.recv() => 128 + 1,
        }
    })
}

/// Starts a thread that reads the terminal's events. The thread ends with the process, since reading cannot be
/// interrupted.
pub(super) fn typed() -> io::Result<mpsc::Receiver<io::Result<Event>>> {
    let (tell, typed) = mpsc::channel(16);
    let read = move || {
        loop {
            let event = event::read();
            let is_over = event.is_err();
            if tell.blocking_send(event).is_err() || is_over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(typed)
}

/// Shows the screen until the user or a signal ends it. Returns the exit code of the signal.
pub(super) async fn follow<B>(
    terminal: &mut Terminal<B>,
    screen: &mut Screen,
    client: &Client,
    interval: Duration,
    mut typed: mpsc::Receiver<io::Result<Event>>,
    ended: impl Future<Output = u8>,
) -> anyhow::Result<Option<u8>>
where
    B: Backend,
    B::Error: Send + Sync + 'static,
{
    let mut ended = std::pin::pin!(ended);
    let mut due = Instant::now();
    let mut polling = Box::pin(poll_at(client, due));
    let mut ticks = interval_at(due + PATIENCE, PATIENCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        screen.silent_for = due.elapsed();
        terminal.draw(|frame| draw::draw(frame, screen))?;
        tokio::select! {
            biased;
            code = &mut ended => return Ok(Some(code)),
            event = typed.recv() => match event.transpose()? {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press && screen.takes(key) => return Ok(None),
                Some(_) => {}
                None => return Ok(None),
            },
            polled = &mut polling => {
                // A failed poll is shown on the screen and retried.
                screen.note(polled);
                due = Instant::now() + interval;
                polling = Box::pin(poll_at(client, due));
            }
            _ = ticks.tick() => {}
        }
    }
}

async fn poll_at(client: &Client, at: Instant) -> anyhow::Result<Polled> {
    sleep_until(at).await;
    poll(client).await
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::bounded::tests::{drip, hang, server};
    use crate::ctl::client::Target;

    async fn client(address: &str) -> Client {
        Client::new(Target::new(address, None).unwrap()).unwrap()
    }

    /// Follows a router until a key is typed or a signal comes, both after the first poll has begun.
    async fn outcome(address: &str, key: Option<KeyEvent>, signal: Option<u8>) -> (Option<u8>, Screen) {
        let client = client(address).await;
        let (tell, typed) = mpsc::channel(4);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut screen = Screen::new(address);
        let ended = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Some(key) = key {
                tell.send(Ok(Event::Key(key))).await.unwrap();
            }
            match signal {
                Some(signal) => signal,
                None => std::future::pending().await,
            }
        };
        let interval = Duration::from_secs(1);
        let followed = follow(&mut terminal, &mut screen, &client, interval, typed, ended);
        let followed = tokio::time::timeout(Duration::from_secs(30), followed).await;
        (followed.expect("it ends while the router hangs").unwrap(), screen)
    }

    #[tokio::test]
    async fn keys_end_it_at_once_while_the_router_does_not_answer() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let keys = [
            KeyEvent::from(KeyCode::Char('q')),
            KeyEvent::from(KeyCode::Esc),
            control_c,
        ];
        for address in [server(hang).await, server(drip).await] {
            for key in keys {
                let (code, screen) = outcome(&address, Some(key), None).await;
                assert_eq!((code, screen.error), (None, None), "{key:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_signal_ends_it_while_the_router_does_not_answer() {
        let address = server(hang).await;
        assert_eq!(outcome(&address, None, Some(143)).await.0, Some(143));
    }
}
