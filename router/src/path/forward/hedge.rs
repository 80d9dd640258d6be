//! A second worker beside one that is late: both work, the first to say something is heard, the other one is cancelled.
//!
//! Off unless `failure.hedge_after_ms` says otherwise, for it has work done twice just when there may be too much of it
//! (Dean and Barroso, "The Tail at Scale", 2013, who hedge after the 95th percentile for that reason). It pays where some
//! workers stall now and then and there is room. The second request draws on the retry budget, goes out once for a
//! request, and only before the first byte: an engine sends the head of a stream before its first token, so an answer
//! counts from its first piece.

use std::time::Duration;

use tracing::debug;

use super::attempt::{Head, Sent};
use super::{Errand, Ledger, choose_admitted};

/// Who came first.
enum First {
    /// The one that was asked first.
    Asked(Head),
    /// The one beside it.
    Beside(Head),
}

/// Waits for a turn that was sent, and after a while for a second one beside it. Returns the one that is answered, or
/// the last one to fail, and what came of it.
pub(super) async fn race(
    errand: &Errand<'_>,
    mut asked: Sent,
    after: Duration,
    ledger: &mut Ledger,
) -> (Sent, Head) {
    if let Ok(head) = tokio::time::timeout(after, asked.head()).await {
        return (asked, head);
    }
    let Some(mut beside) = second(errand, ledger) else {
        return asked.wait().await;
    };
    let metrics = &errand.app.metrics;
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
            debug!(worker = &*beside.worker_name(), "faster than the one asked first");
            metrics.hedge("won");
            asked.outrun();
            (beside, head)
        }
        // One has failed; what the other one says is what counts.
        First::Asked(head) => {
            asked.judge(errand, head, true, |_| true);
            beside.wait().await
        }
        First::Beside(head) => {
            beside.judge(errand, head, true, |_| true);
            asked.wait().await
        }
    }
}

/// Sends the turn to another worker, if there is one and it may be paid for.
fn second(errand: &Errand<'_>, ledger: &mut Ledger) -> Option<Sent> {
    let app = errand.app;
    let (choice, pass) = choose_admitted(app, errand.turn, &mut ledger.tried).ok()?;
    // Paid for once there is somebody to pay for. A breaker's pass that is not used goes back.
    if !app.retries.lock().take(app.clock.now()) {
        app.metrics.hedge("refused");
        return None;
    }
    ledger.tried.push(choice.worker.id);
    Sent::start(errand, &choice, pass, &ledger.charged).ok()
}
