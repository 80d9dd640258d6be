//! The replay itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::HeaderValue;
use reqwest::Url;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::Usage;
use super::chat::Chat;
use super::client::{Client, Exchange, Failure};
use super::plan::{Plan, Script, Step};
use super::text::{Words, mix};

/// How long before its time a turn's body is built. Bounds how many bodies wait.
const AHEAD: Duration = Duration::from_millis(250);

/// What is the same for all turns of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Chat completions of the target. Each turn goes to any of them; without any, no turn is sent.
    pub urls: Vec<Url>,
    /// Model asked for.
    pub model: String,
    /// Whether turns carry their conversation's `X-Session-ID`.
    pub session: bool,
    /// Decides the words. Different for each run that may meet another one's cache.
    pub seed: u64,
    /// Most turns in flight: a bound for the generator's safety, not part of the workload.
    pub concurrency_limit: usize,
}

impl Settings {
    /// Where a turn goes: the same in every round.
    fn url(&self, conversation: u64, turn: u64) -> Option<&Url> {
        let any = mix(mix(conversation) ^ turn) % self.urls.len().max(1) as u64;
        self.urls.get(any as usize)
    }
}

/// What one turn came to.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Whether it is past the warm-up.
    pub counted: bool,
    /// Whether it had to wait for its predecessor's answer.
    pub held: bool,
    /// How late it was sent, in milliseconds.
    pub lag_ms: f64,
    /// Milliseconds from the intended send time to the first content, if any came.
    pub ttft_ms: Option<f64>,
    /// Milliseconds from the intended send time to the end.
    pub took_ms: f64,
    /// Milliseconds between pieces of content.
    pub gaps_ms: Vec<f32>,
    /// What the engine counted.
    pub usage: Option<Usage>,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// In whose words.
    pub detail: Option<String>,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// One a turn, in the order in which they ended.
    pub turns: Vec<Sample>,
    /// Turns that had to wait because of the concurrency limit.
    pub limited: u64,
    /// From the first turn's time to the last one's end.
    pub wall: Duration,
}

struct Shared {
    client: Client,
    settings: Settings,
    block_size: u64,
    start: Instant,
    slots: Semaphore,
    limited: AtomicU64,
}

/// Replays `plan` and returns when every turn has ended. `on_turn` sees each as it ends.
pub async fn replay(
    client: Client,
    settings: Settings,
    plan: &Plan,
    mut on_turn: impl FnMut(&Sample),
) -> Samples {
    let shared = Arc::new(Shared {
        client,
        block_size: plan.block_size,
        start: Instant::now() + AHEAD,
        slots: Semaphore::new(settings.concurrency_limit),
        limited: AtomicU64::new(0),
        settings,
    });
    let mut turns = Vec::with_capacity(plan.turns);
    // Bounded, and read whenever it is not empty: a full channel would hold conversations back.
    let (ended, mut samples) = mpsc::channel(1024);
    let mut ended = Some(ended);
    let mut conversations = JoinSet::new();
    let mut scripts = plan.scripts.iter().peekable();
    loop {
        let next = scripts.peek().and_then(|script| script.steps.first());
        let at = next.map_or(shared.start, |step| {
            (shared.start + step.at)
                .checked_sub(AHEAD)
                .unwrap_or(shared.start)
        });
        if next.is_none() {
            // Dropped, so that the channel closes when the last conversation has ended.
            ended = None;
        }
        tokio::select! {
            biased;
            sample = samples.recv() => match sample {
                Some(sample) => {
                    on_turn(&sample);
                    turns.push(sample);
                }
                None => break,
            },
            () = tokio::time::sleep_until(at), if next.is_some() => {
                if let (Some(script), Some(ended)) = (scripts.next(), &ended) {
                    conversations.spawn(converse(Arc::clone(&shared), script.clone(), ended.clone()));
                }
            }
        }
    }
    let limited = shared.limited.load(Ordering::Relaxed);
    Samples {
        turns,
        limited,
        wall: shared.start.elapsed(),
    }
}

/// One conversation, turn by turn.
async fn converse(shared: Arc<Shared>, script: Script, ended: mpsc::Sender<Sample>) {
    let mut chat = Chat::new(script.id, shared.block_size, Words::new(shared.settings.seed));
    let session = shared
        .settings
        .session
        .then(|| mix(shared.settings.seed ^ mix(script.id)));
    let session = session.and_then(|id| HeaderValue::try_from(format!("drive-{id:016x}")).ok());
    let mut answered = shared.start;
    for (number, step) in (0..).zip(&script.steps) {
        let scheduled = shared.start + step.at;
        tokio::time::sleep_until(scheduled.checked_sub(AHEAD).unwrap_or(scheduled)).await;
        chat.ask(step);
        let body = chat.body(&shared.settings.model, step);
        // The predecessor's answer came after this turn's time: its time is now, with its body built.
        let held = answered > scheduled;
        let due = if held { Instant::now() } else { scheduled };
        tokio::time::sleep_until(due).await;
        let Some(url) = shared.settings.url(script.id, number) else {
            return;
        };
        let (exchange, lag) = send(&shared, url, session.as_ref(), body, due).await;
        answered = Instant::now();
        let (sample, text) = sample(exchange, step, held, lag);
        chat.answer(text, step);
        if ended.send(sample).await.is_err() {
            return;
        }
    }
}

async fn send(
    shared: &Shared,
    url: &Url,
    session: Option<&HeaderValue>,
    body: bytes::Bytes,
    due: Instant,
) -> (Exchange, Duration) {
    let slot = match shared.slots.try_acquire() {
        Ok(slot) => Some(slot),
        Err(_) => {
            shared.limited.fetch_add(1, Ordering::Relaxed);
            shared.slots.acquire().await.ok()
        }
    };
    let lag = due.elapsed();
    let exchange = shared.client.turn(url, session, body, due).await;
    drop(slot);
    (exchange, lag)
}

/// The turn's figures, and its text if it is whole: a broken answer is no history.
fn sample(exchange: Exchange, step: &Step, held: bool, lag: Duration) -> (Sample, Option<String>) {
    let Exchange {
        answer,
        failure,
        detail,
        took,
    } = exchange;
    let text = failure.is_none().then_some(answer.text);
    let sample = Sample {
        counted: step.counted,
        held,
        lag_ms: millis(lag),
        ttft_ms: answer.first_token.map(millis),
        took_ms: millis(took),
        gaps_ms: answer.gaps_ms,
        usage: answer.usage,
        failure,
        detail,
    };
    (sample, text)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
