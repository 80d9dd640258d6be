//! Streamed replies: a role chunk, content chunks, a finish chunk, usage if requested, `[DONE]`.
//!
//! All text since the last write goes into one content chunk, so that a slow reader or a fast clock makes chunks
//! longer, and nothing queues up.

use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::watch;

use super::body::{Body, CutOff};
use super::shape::Shape;
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

/// Formats events without a serialiser, because the chunks of a reply differ only in their text.
pub(super) struct Writer {
    shape: Shape,
    /// `data: {"id":…,"choices":`, the same in every chunk.
    head: String,
    said: u32,
    bytes: usize,
    done: bool,
}

impl Writer {
    pub(super) fn new(shape: Shape) -> Self {
        let object = if shape.chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let model = Value::from(shape.shared.config.model.as_str());
        let id = Value::from(shape.id.as_str());
        let created = shape.created;
        let head = format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":"
        );
        Self {
            shape,
            head,
            said: 0,
            bytes: 0,
            done: false,
        }
    }

    /// Returns the events from the last written state to `progress`.
    pub(super) fn events(&mut self, progress: &Progress) -> String {
        let mut out = String::with_capacity(2 * self.head.len() + 128);
        if self.said == 0 && self.shape.chat {
            self.choice(
                &mut out,
                "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
                "null",
            );
        }
        if let Some(script) = self.shape.reply.script.clone() {
            let deltas = script.deltas(self.said..progress.generated);
            for delta in deltas {
                self.choice(&mut out, &format!("\"delta\":{delta}"), "null");
            }
            self.said = progress.generated;
        }
        let text = self.new_text(progress.generated);
        if !text.is_empty() {
            // Generated words contain nothing that JSON escapes.
            let content = if self.shape.chat {
                format!("\"delta\":{{\"content\":\"{text}\"}}")
            } else {
                format!("\"text\":\"{text}\"")
            };
            self.choice(&mut out, &content, "null");
        }
        if progress.done {
            self.finish(&mut out, progress);
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

    fn choice(&self, out: &mut String, content: &str, finish: &str) {
        out.push_str(&self.head);
        out.push_str("[{\"index\":0,");
        out.push_str(content);
        out.push_str(",\"logprobs\":null,\"finish_reason\":");
        out.push_str(finish);
        out.push_str("}]}\n\n");
    }

    fn finish(&mut self, out: &mut String, progress: &Progress) {
        self.done = true;
        let metrics = self
            .shape
            .metrics(progress)
            .map_or(String::new(), |metrics| format!(",\"metrics\":{metrics}"));
        let tiers = self.shape.tiers(progress);
        let metrics = metrics + &tiers.map_or(String::new(), |tiers| format!(",\"sglext\":{tiers}"));
        let content = if self.shape.chat {
            "\"delta\":{\"content\":\"\"}"
        } else {
            "\"text\":\"\""
        };
        let finish = format!("\"{}\"", self.shape.reply.finish.name());
        self.choice(out, content, &finish);
        if self.shape.reply.include_usage {
            let usage = self.shape.usage(progress);
            out.push_str(&self.head);
            out.push_str(&format!("[],\"usage\":{usage}{metrics}}}\n\n"));
        } else if !metrics.is_empty() {
            // Without a usage chunk, the finish chunk carries the metrics.
            out.truncate(out.len() - "}\n\n".len());
            out.push_str(&format!("{metrics}}}\n\n"));
        }
        out.push_str("data: [DONE]\n\n");
    }
}
