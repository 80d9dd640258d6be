//! What changes, as it happens: server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use bytes::Bytes;
use config::Role;
use futures_util::stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use crate::operator::events::Event;

/// Who may listen at once.
const LISTENERS: usize = 64;
/// Something is said at least so often, so that who is gone is noticed.
const STILL_THERE: Duration = Duration::from_secs(15);

/// The operations of this file.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new::<Event, _, _>(
            "events.follow",
            (Method::GET, "/admin/v1/events"),
            Role::Read,
            "What changes, as it happens: the policy, workers, breakers, reloads; `lagged` says how many were missed",
            follow,
        )
        .of_type("text/event-stream")
        .fails(&[429]),
    ]
}

async fn follow(call: Call) -> Result<Reply, Problem> {
    let events = &call.app.operator.events;
    if events.listeners() >= LISTENERS {
        return Err(Problem::busy(format!("{LISTENERS} listen already")));
    }
    let first = Bytes::from_static(b": listening\n\n");
    let stream = stream::unfold((events.listen(), Some(first)), next);
    Ok(Reply::of_type("text/event-stream", Body::from_stream(stream)))
}

type State = (Receiver<Arc<Event>>, Option<Bytes>);

async fn next((mut events, first): State) -> Option<(Result<Bytes, Infallible>, State)> {
    if let Some(first) = first {
        return Some((Ok(first), (events, None)));
    }
    let text = match tokio::time::timeout(STILL_THERE, events.recv()).await {
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
    Some((Ok(Bytes::from(text)), (events, None)))
}
