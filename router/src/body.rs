//! The two body types of the proxy path: what goes to workers and what goes to clients.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// A body error: the other side's stream broke, or took too long.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in either direction. Boxed once per request, never per chunk.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is already whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that streams through as it comes.
pub fn streaming<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}
