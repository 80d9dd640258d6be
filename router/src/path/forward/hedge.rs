//! A second worker beside one that is late: the first to answer is passed on, the other is cancelled.
//!
//! Off unless `failure.hedge_after_ms` says otherwise, for it has work done twice just when there may be too much of it
//! (Dean and Barroso, "The Tail at Scale", 2013, who hedge after the 95th percentile for that reason). It pays where some
//! workers stall now and then and there is room. The second request draws on the retry budget, goes out once for a
//! request, and only before the first byte: an engine sends the head of a stream before its first token, so an answer
//! counts from its first piece.

use std::time::Duration;

use tracing::debug;

use super::super::retry::RetryState;
use super::attempt::{Head, Sent};
use super::{TurnRequest, select_admitted};

/// The attempt that came first.
enum First {
    /// The one that was asked first.
    Asked(Head),
    /// The one beside it.
    Beside(Head),
}

/// Waits for a turn that was sent, and after a while for a second one beside it. Returns the one that is answered, or
/// the last one to fail, and what came of it.
pub(super) async fn race(
    request: &TurnRequest<'_>,
    mut asked: Sent,
    after: Duration,
    state: &mut RetryState,
) -> (Sent, Head) {
    if let Ok(head) = tokio::time::timeout(after, asked.head()).await {
        return (asked, head);
    }
    let Some(mut beside) = second(request, state) else {
        return asked.wait().await;
    };
    let metrics = &request.context.app.metrics;
    metrics.hedge("sent");
    let first = tokio::select! {
        biased;
        head = asked.head() => First::Asked(head),
        head = beside.head() => First::Beside(head),
    };
    match first {
        First::Asked(head) if head.is_answer() => {
            beside.outrun();
            (asked, head)
        }
        First::Beside(head) if head.is_answer() => {
            debug!(worker = &*beside.worker_name(), "the hedged worker was faster");
            metrics.hedge("won");
            asked.outrun();
            (beside, head)
        }
        // One failed, so the other decides.
        First::Asked(head) => {
            asked.judge(request, head, |_| true);
            beside.wait().await
        }
        First::Beside(head) => {
            beside.judge(request, head, |_| true);
            asked.wait().await
        }
    }
}

/// Sends the turn to another worker, if there is one and it may be paid for.
fn second(request: &TurnRequest<'_>, state: &mut RetryState) -> Option<Sent> {
    let app = request.context.app;
    let (choice, pass) = select_admitted(app, request.turn, &mut state.tried).ok()?;
    // Paid for once there is a worker for it. A breaker's pass that is not used goes back.
    if !state.may_hedge(app) {
        return None;
    }
    state.tried.push(choice.worker.id);
    Sent::start(request, &choice, pass, &state.charged).ok()
}
