//! The replay itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::HeaderValue;
use reqwest::Url;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::TokenUsage;
use super::chat::Chat;
use super::client::{ChatClient, Exchange, TurnFailure};
use super::plan::{Plan, PlannedTurn, Script};
use super::text::Words;
use simulator::fleet::mix;

/// Time before a turn's send time at which its body is built. Bounds the number of waiting bodies.
const AHEAD: Duration = Duration::from_millis(250);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Chat completion URLs of the target. Each turn goes to one of them; with none, nothing is sent.
    pub urls: Vec<Url>,
    /// Model requested.
    pub model: String,
    /// Whether turns carry their conversation's `X-Session-ID`.
    pub session: bool,
    /// Seed of the generated text. Differs between runs that may share a cache.
    pub seed: u64,
    /// Maximum number of turns in flight, to protect the generator's machine; not part of the workload.
    pub concurrency_limit: usize,
}

impl RunSettings {
    /// Returns the URL of a turn, the same in every round.
    fn url(&self, conversation: u64, turn: u64) -> Option<&Url> {
        let any = mix(mix(conversation) ^ turn) % self.urls.len().max(1) as u64;
        self.urls.get(any as usize)
    }
}

/// The measurements of one turn.
#[derive(Clone, Debug)]
pub struct TurnSample {
    /// Whether the turn comes after the warm-up.
    pub counted: bool,
    /// Whether the turn waited for its predecessor's response.
    pub held: bool,
    /// Delay of the turn behind its intended send time, in milliseconds.
    pub lag_ms: f64,
    /// Milliseconds from the intended send time to the first content, if there was any.
    pub ttft_ms: Option<f64>,
    /// Milliseconds from the intended send time to the end.
    pub took_ms: f64,
    /// Milliseconds between pieces of content.
    pub gaps_ms: Vec<f32>,
    /// The engine's token counts.
    pub usage: Option<TokenUsage>,
    /// The failure, if any.
    pub failure: Option<TurnFailure>,
    /// The error text of the failure.
    pub detail: Option<String>,
}

/// The measurements of a run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// One sample per ended turn, in the order of their ends.
    pub turns: Vec<TurnSample>,
    /// Turns delayed by the concurrency limit.
    pub limited: u64,
    /// Time from the first turn to the end of the run.
    pub wall: Duration,
}

struct RunContext {
    client: ChatClient,
    settings: RunSettings,
    block_size: u64,
    start: Instant,
    slots: Semaphore,
    limited: AtomicU64,
}

/// Replays `plan` and returns when every turn has ended, or when `stop` is ready, without the turns in flight. Calls
/// `on_turn` as each one ends.
pub async fn replay(
    client: ChatClient,
    settings: RunSettings,
    plan: &Plan,
    mut on_turn: impl FnMut(&TurnSample),
    stop: impl Future<Output = ()>,
) -> Samples {
    let mut stop = std::pin::pin!(stop);
    let shared = Arc::new(RunContext {
        client,
        block_size: plan.block_size,
        start: Instant::now() + AHEAD,
        slots: Semaphore::new(settings.concurrency_limit),
        limited: AtomicU64::new(0),
        settings,
    });
    let mut turns = Vec::with_capacity(plan.turns);
    // The channel is bounded, and this loop drains it first: a full channel would delay conversations.
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
            // Dropping this sender lets the channel close with the last conversation.
            ended = None;
        }
        tokio::select! {
            biased;
            () = &mut stop => break,
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

async fn converse(shared: Arc<RunContext>, script: Script, ended: mpsc::Sender<TurnSample>) {
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
        // With a late predecessor, the intended time is now that the body is built.
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
    shared: &RunContext,
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

/// Returns the turn's measurements, and its text if complete: an incomplete response is not added to the history.
fn sample(exchange: Exchange, step: &PlannedTurn, held: bool, lag: Duration) -> (TurnSample, Option<String>) {
    let Exchange {
        answer,
        failure,
        detail,
        took,
    } = exchange;
    let text = failure.is_none().then_some(answer.text);
    let sample = TurnSample {
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
