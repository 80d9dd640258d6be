//! Streamed replies. The events of each API are a [`Form`]. All text since the last write goes into one content chunk,
//! so that a slow reader or a fast clock makes chunks longer, and nothing queues up.

mod choices;

use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;

use self::choices::Choices;
use super::api::Api;
use super::body::{Body, CutOff};
use super::form::Form;
use super::shape::Shape;
use super::{messages, responses};
use crate::fault::Break;
use crate::rank::{Hold, Ticket};
use crate::scheduler::Progress;
use crate::text;

pub(super) fn respond(shape: Shape, ticket: Ticket, breaks: Option<(u32, Break)>) -> Response<Body> {
    let Ticket { progress, hold } = ticket;
    let stream = Stream {
        writer: Writer::new(shape),
        progress,
        hold: Some(hold),
        breaks,
    };
    let frames = unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        match stream.next().await {
            Ok(Some(frame)) => Some((Ok(Frame::data(frame)), Some(stream))),
            Ok(None) => None,
            Err(cut) => Some((Err(cut), None)),
        }
    });
    event_stream(StreamBody::new(frames).boxed_unsync())
}

pub(super) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

struct Stream {
    writer: Writer,
    progress: watch::Receiver<Progress>,
    /// Dropped with the stream when the client disconnects.
    hold: Option<Hold>,
    breaks: Option<(u32, Break)>,
}

impl Stream {
    async fn next(&mut self) -> Result<Option<Bytes>, CutOff> {
        if self.writer.done {
            return Ok(None);
        }
        if let Some(opening) = self.writer.opening() {
            return Ok(Some(Bytes::from(opening)));
        }
        let said = self.writer.said;
        let progress = match self
            .progress
            .wait_for(|progress| progress.done || progress.generated > said)
            .await
        {
            Ok(progress) => *progress,
            // The engine has died.
            Err(_) => return Err(CutOff),
        };
        match self.breaks {
            Some((tokens, how)) if said >= tokens => return self.break_off(how).await,
            // Send exactly the requested number of tokens before breaking off.
            Some((tokens, _)) if progress.generated >= tokens => {
                let part = Progress {
                    generated: tokens,
                    done: false,
                    ..progress
                };
                return Ok(Some(Bytes::from(self.writer.events(&part))));
            }
            _ => {}
        }
        if progress.lost {
            return Err(CutOff);
        }
        Ok(Some(Bytes::from(self.writer.events(&progress))))
    }

    async fn break_off(&mut self, how: Break) -> Result<Option<Bytes>, CutOff> {
        if how == Break::Stall {
            // Stall until the client disconnects.
            std::future::pending::<()>().await;
        }
        // The server flushes earlier data only when the body is pending.
        tokio::task::yield_now().await;
        if let Some(mut hold) = self.hold.take() {
            hold.injected = true;
            hold.count_injected();
        }
        if how == Break::End { Ok(None) } else { Err(CutOff) }
    }
}

pub(super) struct Writer {
    shape: Shape,
    form: Box<dyn Form>,
    opened: bool,
    said: u32,
    bytes: usize,
    done: bool,
}

impl Writer {
    pub(super) fn new(shape: Shape) -> Self {
        let form: Box<dyn Form> = match shape.api {
            Api::Chat | Api::Completions => Box::new(Choices::new(&shape)),
            Api::Messages => Box::new(messages::Events::default()),
            Api::Responses => Box::new(responses::Events::new(&shape.id)),
        };
        Self {
            shape,
            form,
            opened: false,
            said: 0,
            bytes: 0,
            done: false,
        }
    }

    /// Returns the events before the first token, once, if there are any.
    fn opening(&mut self) -> Option<String> {
        let mut out = String::new();
        if !std::mem::replace(&mut self.opened, true) {
            self.form.open(&mut out, &self.shape);
        }
        (!out.is_empty()).then_some(out)
    }

    /// Returns the events from the last written state to `progress`.
    pub(super) fn events(&mut self, progress: &Progress) -> String {
        let mut out = self.opening().unwrap_or_else(|| String::with_capacity(512));
        if self.said == 0 {
            self.form.begin(&mut out, &self.shape);
        }
        if let Some(script) = self.shape.reply.script.clone() {
            for delta in script.deltas(self.said..progress.generated) {
                match delta["content"].as_str() {
                    Some(text) => self.form.text(&mut out, text),
                    None => self.form.calls(&mut out, &delta),
                }
            }
            self.said = progress.generated;
        }
        let text = self.new_text(progress.generated);
        if !text.is_empty() {
            self.form.text(&mut out, &text);
        }
        if progress.done {
            self.done = true;
            self.form.finish(&mut out, &self.shape, progress);
        }
        out
    }

    /// Returns the words since the last event; empty if there is a script, whose deltas are written separately.
    fn new_text(&mut self, generated: u32) -> String {
        let mut text = text::words(
            self.shape.reply.seed,
            self.said..generated,
            self.shape.shared.config.multibyte,
        );
        if let Some(cut) = self.shape.reply.cut {
            text.truncate(cut.saturating_sub(self.bytes));
        }
        self.said = generated;
        self.bytes += text.len();
        text
    }
}
