//! The form of a streamed reply.

use serde_json::Value;

use super::shape::Shape;
use crate::scheduler::Progress;

pub(super) trait Form: Send {
    /// Appends the events that are sent before the first token exists.
    fn open(&mut self, _out: &mut String, _shape: &Shape) {}

    /// Appends the events that precede those of the first token.
    fn begin(&mut self, _out: &mut String, _shape: &Shape) {}

    /// Appends the events of more text, which contains nothing that JSON escapes.
    fn text(&mut self, out: &mut String, text: &str);

    /// Appends the events of a delta of tool calls, in the form of chat completions.
    fn calls(&mut self, out: &mut String, delta: &Value);

    fn finish(&mut self, out: &mut String, shape: &Shape, progress: &Progress);
}
