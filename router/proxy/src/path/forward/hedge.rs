//! Hedged requests: sends a late turn to a second worker, relays the first response and cancels the other.
//!
//! Hedging doubles work when load may be high, so it is off by default (`failure.hedge_after_ms`); Dean and Barroso
//! hedge after the 95th percentile for that reason ("The Tail at Scale", 2013). A request hedges at most once, from the
//! retry budget. Engines send the head of a stream before its first token, so a response counts from its first piece.

use std::mem::replace;
use std::time::Duration;

use tracing::debug;

use super::super::retry::RetryState;
use super::attempt::{Head, PendingTurn};
use super::{TurnRequest, select_admitted};

enum FirstHead {
    /// The original attempt ended first.
    Asked(Head),
    Beside(Head),
}

/// Waits for the response to a turn, and hedges the turn after a delay. Returns the result of the attempt that is
/// answered, or of the last to fail, and leaves that attempt in `asked`.
pub(super) async fn race(
    request: &TurnRequest<'_>,
    asked: &mut PendingTurn,
    after: Duration,
    state: &mut RetryState,
) -> Head {
    if let Ok(head) = tokio::time::timeout(after, asked.head()).await {
        return head;
    }
    let Some(mut beside) = second(request, state) else {
        return asked.head().await;
    };
    let metrics = &request.context.proxy.state.routing.metrics;
    metrics.hedge("sent");
    let first = tokio::select! {
        biased;
        head = asked.head() => FirstHead::Asked(head),
        head = beside.head() => FirstHead::Beside(head),
    };
    match first {
        FirstHead::Asked(head) if head.is_answer() => {
            beside.outrun();
            head
        }
        FirstHead::Beside(head) if head.is_answer() => {
            debug!(worker = &*beside.worker_name(), "the hedged worker was faster");
            metrics.hedge("won");
            replace(asked, beside).outrun();
            head
        }
        // One failed, so the other decides.
        FirstHead::Asked(head) => {
            replace(asked, beside).judge(request, head, |_| true);
            asked.head().await
        }
        FirstHead::Beside(head) => {
            beside.judge(request, head, |_| true);
            asked.head().await
        }
    }
}

/// Sends the turn to another worker, if there is one and the retry budget allows it.
fn second(request: &TurnRequest<'_>, state: &mut RetryState) -> Option<PendingTurn> {
    let proxy = request.context.proxy;
    let (choice, pass) = select_admitted(&proxy.state.routing, request.turn, &mut state.tried).ok()?;
    // Charged only if there is a worker.
    if !state.may_hedge(&proxy.state.routing) {
        choice.worker.withdraw(proxy.state.routing.clock.now(), pass);
        return None;
    }
    state.tried.push(choice.worker.id);
    PendingTurn::start(request, &choice, pass, &state.charged).ok()
}

#[cfg(test)]
mod tests;
