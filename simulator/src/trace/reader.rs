//! The reader: lines in, turns out.

use std::sync::Arc;

use super::bailian::{self, Bailian};
use super::check::Checker;
use super::error::{TraceError, TraceFault};
use super::line::{TURN_FIELDS, TurnLine, bounded, expand_runs, parse, parse_fleet, parse_meta, time};
use super::mooncake::{self, Mooncake};
use super::{Captured, ClassId, Format, Meta, Turn};
use policy::fleet_record::FleetRecord;
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Upper bound on classes in one trace, since classes become rows of per-class arrays.
const MAX_CLASSES: usize = 1024;

/// A push parser for one trace.
///
/// ```
/// use simulator::trace::{Format, Reader};
/// let mut reader = Reader::new(Format::Auto);
/// let line = r#"{"ts":1.5,"conv":7,"turn":0,"prompt_tokens":30,"history_tokens":0,"response_tokens":12}"#;
/// let turn = reader.line(line)?.ok_or("a turn")?;
/// assert_eq!(turn.total_tokens().0, 42);
/// let refused = reader.line(line).unwrap_err();
/// assert_eq!(refused.to_string(), "line 2: conversation 7: turn 0 comes after turn 0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    shape: Shape,
    meta: Meta,
    meta_seen: bool,
    lines: u64,
    turns: u64,
    fleet: Option<FleetRecord>,
    checker: Checker,
    classes: Vec<Arc<str>>,
}

#[derive(Debug)]
enum Shape {
    Unknown,
    Turn { extras: bool },
    Mooncake(Mooncake),
    Bailian(Bailian),
}

impl Reader {
    /// Creates a reader at the start of a trace.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let mut reader = Self {
            shape: Shape::Unknown,
            meta: Meta::default(),
            meta_seen: false,
            lines: 0,
            turns: 0,
            fleet: None,
            checker: Checker::default(),
            classes: vec![Arc::from("default")],
        };
        reader.become_format(format);
        reader
    }

    /// Parses the next line of the trace, without its line end. `None` for a meta line, a line with the fleet, or a
    /// blank one. Fails with the line's number and the reason; [`crate::trace`] lists what is refused.
    pub fn line(&mut self, text: &str) -> Result<Option<Turn>, TraceError> {
        self.lines += 1;
        let line = self.lines;
        self.accept(text).map_err(|fault| TraceError { line, fault })
    }

    /// Returns the number of lines so far, refused ones included.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns the trace's metadata, complete once the first turn was read.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns the fleet of a capture as last recorded; complete once all turns were read.
    #[must_use]
    pub fn fleet(&self) -> Option<&FleetRecord> {
        self.fleet.as_ref()
    }

    /// Returns the name of a class; `None` for a class that no turn of this reader had.
    #[must_use]
    pub fn class_name(&self, class: ClassId) -> Option<&str> {
        self.classes.get(class.index()).map(AsRef::as_ref)
    }

    /// Returns the number of classes seen so far, the default included: class ids are below it.
    #[must_use]
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    fn accept(&mut self, text: &str) -> Result<Option<Turn>, TraceFault> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        if let Some(meta) = parse_meta(text) {
            let (meta, is_capture) = meta?;
            return self.accept_meta(meta, is_capture);
        }
        if matches!(self.shape, Shape::Turn { extras: true })
            && let Some(fleet) = parse_fleet(text)
        {
            self.fleet = Some(fleet?);
            return Ok(None);
        }
        if matches!(self.shape, Shape::Unknown) {
            self.become_format(detect(text)?);
        }
        let (mut turn, class) = match &mut self.shape {
            Shape::Mooncake(mooncake) => (mooncake.line(text)?, None),
            Shape::Bailian(bailian) => bailian.line(text)?,
            Shape::Turn { extras } => turn_line(text, *extras)?,
            Shape::Unknown => return Err(TraceFault::UnknownFormat),
        };
        turn.class = self.intern(class)?;
        self.checker.admit(&turn, self.meta.block_size)?;
        self.turns += 1;
        Ok(Some(turn))
    }

    fn accept_meta(&mut self, meta: Meta, is_capture: bool) -> Result<Option<Turn>, TraceFault> {
        if self.meta_seen || self.turns > 0 {
            return Err(TraceFault::LateMeta);
        }
        self.meta_seen = true;
        if matches!(self.shape, Shape::Unknown) {
            self.become_format(if is_capture { Format::Capture } else { Format::Turn });
        }
        // A published format's block size is fixed by the format.
        let block_size = self.meta.block_size.or(meta.block_size);
        self.meta = Meta { block_size, ..meta };
        Ok(None)
    }

    fn become_format(&mut self, format: Format) {
        let (shape, block_size) = match format {
            Format::Auto => (Shape::Unknown, None),
            Format::Turn => (Shape::Turn { extras: false }, None),
            Format::Capture => (Shape::Turn { extras: true }, None),
            Format::Mooncake => (Shape::Mooncake(Mooncake::default()), Some(mooncake::BLOCK_SIZE)),
            Format::Bailian => (Shape::Bailian(Bailian::default()), Some(bailian::BLOCK_SIZE)),
        };
        self.shape = shape;
        self.meta.block_size = block_size;
    }

    fn intern(&mut self, name: Option<String>) -> Result<ClassId, TraceFault> {
        let Some(name) = name else {
            return Ok(ClassId::DEFAULT);
        };
        // Few classes: a scan is faster than a map.
        if let Some(at) = self.classes.iter().position(|known| **known == *name) {
            return Ok(ClassId(at as u16));
        }
        if self.classes.len() >= MAX_CLASSES {
            return Err(TraceFault::TooManyClasses(MAX_CLASSES));
        }
        self.classes.push(Arc::from(name));
        Ok(ClassId((self.classes.len() - 1) as u16))
    }
}

fn detect(text: &str) -> Result<Format, TraceFault> {
    let object = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(object)) => object,
        Ok(_) => return Err(TraceFault::Syntax("a JSON value of another type".to_owned())),
        Err(error) => return Err(TraceFault::Syntax(error.to_string())),
    };
    if object.contains_key("chat_id") {
        Ok(Format::Bailian)
    } else if object.contains_key("input_length") {
        Ok(Format::Mooncake)
    } else if object.contains_key("conv") || object.contains_key("ts") {
        Ok(Format::Turn)
    } else {
        Err(TraceFault::UnknownFormat)
    }
}

fn turn_line(text: &str, extras: bool) -> Result<(Turn, Option<String>), TraceFault> {
    let line: TurnLine = parse(text, TURN_FIELDS, extras)?;
    let blocks = match (line.blocks, line.block_runs) {
        (Some(_), Some(_)) => {
            return Err(TraceFault::field(
                "block_runs",
                "beside `blocks`: one of them is enough",
            ));
        }
        (Some(ids), None) => Some(ids),
        (None, Some(runs)) => Some(expand_runs(&runs)?),
        (None, None) => None,
    };
    let turn = Turn {
        ts_s: line.ts,
        conversation: ConversationId(line.conv),
        turn: line.turn,
        prompt_tokens: Tokens(bounded("prompt_tokens", line.prompt_tokens)?),
        history_tokens: Tokens(bounded("history_tokens", line.history_tokens)?),
        response_tokens: Tokens(bounded("response_tokens", line.response_tokens)?),
        blocks,
        class: ClassId::DEFAULT,
        captured: Captured {
            objective: time("objective_ms", line.objective_ms)?.filter(|objective| objective.0 > 0.0),
            ttft: time("ttft_ms", line.ttft_ms)?.filter(|_| !line.whole),
            took: time("took_ms", line.took_ms)?,
            cached: line.cached_tokens.map(Tokens),
        },
    };
    Ok((turn, line.class))
}
