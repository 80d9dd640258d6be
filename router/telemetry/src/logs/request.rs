//! Adds trace and request id to each line that is logged while a request is processed.
//!
//! The ids are attached to the task and formatted only when a line is written, which few requests cause. Rejected: a
//! `tracing` span per request, which formats and registers its fields for every request and costs 3 % of a small one.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::context::TraceId;

tokio::task_local! {
    static CURRENT: RequestIdentity;
}

/// Identity of the current request in the log.
#[derive(Clone, Debug)]
pub struct RequestIdentity(Arc<RequestIds>);

#[derive(Debug)]
struct RequestIds {
    trace: TraceId,
    request: HeaderValue,
}

impl RequestIdentity {
    pub fn new(trace: TraceId, request_id: HeaderValue) -> Self {
        Self(Arc::new(RequestIds {
            trace,
            request: request_id,
        }))
    }

    /// Returns the identity of the request that this task is processing; `None` outside of a request.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Attributes lines logged by a future, or by dropping it, to this request.
    pub fn within<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, future)
    }

    /// Attributes lines logged by `work` to this request.
    pub fn in_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }

    fn trace_id(&self) -> &str {
        self.0.trace.as_str()
    }

    fn request_id(&self) -> &str {
        self.0.request.to_str().unwrap_or_default()
    }
}

/// Formats lines as JSON with the request's ids in their `span`. The inner format must not print the current span.
#[derive(Debug)]
pub struct Json<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(whose) = RequestIdentity::current() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.trim_end().strip_suffix('}') {
            Some(open) => {
                let span = serde_json::json!({
                    "name": "request", "trace_id": whose.trace_id(), "request_id": whose.request_id(),
                });
                writeln!(writer, "{open},\"span\":{span}}}")
            }
            None => writer.write_str(&line),
        }
    }
}

/// Formats the fields of a line of text, followed by the request's ids.
#[derive(Debug)]
pub struct Text<F>(pub F);

impl<'w, F: for<'a> FormatFields<'a>> FormatFields<'w> for Text<F> {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        self.0.format_fields(writer.by_ref(), fields)?;
        match RequestIdentity::current() {
            Some(whose) => write!(
                writer,
                " trace_id={} request_id={}",
                whose.trace_id(),
                whose.request_id()
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use parking_lot::Mutex;
    use tracing::{info, subscriber};
    use tracing_subscriber::fmt::format::{DefaultFields, JsonFields, format};

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn all(&self) -> Vec<String> {
            let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    /// Logs for a request, partly in a future, then outside of any request.
    fn log() {
        let name = HeaderValue::from_static(r#"a"quoted\name"#);
        let whose = RequestIdentity::new(TraceId::read(TRACE.as_bytes()).unwrap(), name);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(whose.clone().within(async {
            tokio::task::yield_now().await;
            info!(worker = "w", "chosen");
            RequestIdentity::current().unwrap().in_scope(|| info!("ended"));
        }));
        assert!(RequestIdentity::current().is_none());
        info!(worker = "w", "probed");
    }

    #[test]
    fn a_line_of_json_has_the_requests_names_in_its_span_and_others_have_none() {
        let lines = Lines::default();
        let to = lines.clone();
        let log_of_this = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .fmt_fields(JsonFields::new())
            .event_format(Json(format().json().with_current_span(false)))
            .finish();
        subscriber::with_default(log_of_this, log);
        let lines = lines.all().into_iter();
        let [chosen, ended, probed] = lines
            .map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert_eq!(
            chosen["fields"],
            serde_json::json!({"worker":"w","message":"chosen"})
        );
        for line in [&chosen, &ended] {
            let span = serde_json::json!({"name":"request","trace_id":TRACE,"request_id":r#"a"quoted\name"#});
            assert_eq!(line["span"], span, "{line}");
        }
        assert!(probed.get("span").is_none(), "{probed}");
        assert_eq!(probed["fields"]["message"], "probed");
    }

    #[test]
    fn a_line_of_text_ends_with_them() {
        let lines = Lines::default();
        let to = lines.clone();
        let log_of_this = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .with_ansi(false)
            .fmt_fields(Text(DefaultFields::new()))
            .finish();
        subscriber::with_default(log_of_this, log);
        let lines = lines.all();
        let names = format!(r#" trace_id={TRACE} request_id=a"quoted\name"#);
        assert!(
            lines[0].ends_with(&format!("chosen worker=\"w\"{names}")),
            "{lines:?}"
        );
        assert!(lines[1].ends_with(&format!("ended{names}")), "{lines:?}");
        assert!(lines[2].ends_with("probed worker=\"w\""), "{lines:?}");
    }
}
