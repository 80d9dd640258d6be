//! The stream of changes, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use crate::Admin;
use operator::events::Event;

const LISTENERS: usize = 64;
/// Interval of keep-alives, which detect closed connections.
const STILL_THERE: Duration = Duration::from_secs(15);

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<Event, _, _>(
            "events.follow",
            "/admin/v1/events",
            "Changes as they happen: the policy, workers, breakers, slow workers, reloads, failed tasks; `lagged` counts missed events",
            follow,
        )
        .of_type("text/event-stream")
        .fails(&[429]),
    ]
}

async fn follow(call: Call) -> Result<Reply, Problem> {
    let events = &call.admin.state.operations.operator.events;
    // The history listens as well.
    if events.listeners() > LISTENERS {
        return Err(Problem::busy(format!("there are already {LISTENERS} listeners")));
    }
    let first = Bytes::from_static(b": listening\n\n");
    let listener = Listener {
        events: events.listen(),
        first: Some(first),
        admin: Arc::clone(&call.admin),
        headers: call.headers,
    };
    let stream = stream::unfold(listener, next);
    Ok(Reply::of_type("text/event-stream", Body::from_stream(stream)))
}

struct Listener {
    events: Receiver<Arc<Event>>,
    first: Option<Bytes>,
    admin: Arc<Admin>,
    /// Header fields of the request, with its token.
    headers: HeaderMap,
}

async fn next(mut listener: Listener) -> Option<(Result<Bytes, Infallible>, Listener)> {
    if let Some(first) = listener.first.take() {
        return Some((Ok(first), listener));
    }
    let heard = tokio::time::timeout(STILL_THERE, listener.events.recv()).await;
    // Reloaded tokens are an event too, so a listener whose token was removed gets no further events.
    listener
        .admin
        .state
        .operations
        .operator
        .tokens
        .load()
        .identify(&listener.headers)?;
    let text = match heard {
        Ok(Ok(event)) => {
            let data = serde_json::to_string(&*event).unwrap_or_default();
            format!(
                "id: {}\nevent: {}\ndata: {data}\n\n",
                event.number,
                event.kind.as_str()
            )
        }
        Ok(Err(RecvError::Lagged(missed))) => format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n"),
        Ok(Err(RecvError::Closed)) => return None,
        Err(_) => ": still there\n\n".to_owned(),
    };
    Some((Ok(Bytes::from(text)), listener))
}
