//! Messages, their parts and tool calls, and the request's tools, in canonical form.
//!
//! Members are hashed in the request's order. Where the canonical form requires another order (role first, a part's
//! type before its data), the scanner looks ahead.

use std::borrow::Cow;

use policy::fingerprint::{Field, Mark, Medium, Pieces};

use super::Hashed;
use super::media::{image, named, named_medium, unnamed, uuid};
use super::once::{Met, once};
use crate::json::{Malformed, Quoted, Scanner};

/// Reads one message: its role, then its other fields by rank.
pub(crate) fn message(scanner: &mut Scanner<'_>, pieces: &mut Pieces) -> Result<(), Malformed> {
    scanner.peek();
    let (start, mark, mut twice) = (scanner.clone(), pieces.mark(), false);
    read(scanner, mark, pieces, &mut twice)?;
    if twice {
        settled(start, mark, pieces)
    } else {
        Ok(())
    }
}

/// Rereads a message with duplicate members, keeping the last of each.
#[cold]
fn settled(mut start: Scanner<'_>, mark: Mark, pieces: &mut Pieces) -> Result<(), Malformed> {
    pieces.rewind(mark);
    let message = once(&mut start)?;
    read(&mut Scanner::new(&message), mark, pieces, &mut false)
}

fn read(
    scanner: &mut Scanner<'_>,
    mark: Mark,
    pieces: &mut Pieces,
    twice: &mut bool,
) -> Result<(), Malformed> {
    let start = scanner.clone();
    let (mut begun, mut in_order, mut met) = (false, true, Met::default());
    let mut fields = Fields::default();
    scanner.object(|scanner, key| {
        if key == b"role" {
            met.note(ROLE, twice);
            if !std::mem::replace(&mut begun, true) {
                return role(scanner, pieces);
            }
            return scanner.skip().map(drop);
        }
        let Some((rank, number)) = place(key) else {
            return scanner.skip().map(drop);
        };
        met.note(number, twice);
        let is_null = scanner.peek() == Some(b'n');
        in_order &= is_null || rank >= fields.reached;
        if is_null || !in_order {
            return scanner.skip().map(drop);
        }
        if !std::mem::replace(&mut begun, true) {
            begin(&start, pieces);
        }
        fields.take(rank, key, scanner, pieces, twice)
    })?;
    if in_order {
        Ok(())
    } else {
        again(&start, mark, pieces, twice)
    }
}

/// Rereads a message whose members are out of order, rank by rank.
#[cold]
fn again(start: &Scanner<'_>, mark: Mark, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    pieces.rewind(mark);
    begin(start, pieces);
    let mut fields = Fields::default();
    for wanted in 0..=LAST {
        start.clone().object(|scanner, key| match place(key) {
            Some((rank, _)) if rank == wanted => fields.take(rank, key, scanner, pieces, twice),
            _ => scanner.skip().map(drop),
        })?;
    }
    Ok(())
}

const LAST: u8 = 2;

const ROLE: u8 = 7;

/// Returns a member's rank in the canonical form, and its number for [`Met`]; `None` for members that are not hashed.
fn place(key: &[u8]) -> Option<(u8, u8)> {
    match key {
        b"reasoning" => Some((0, 0)),
        b"reasoning_content" => Some((0, 1)),
        b"content" => Some((1, 2)),
        b"name" => Some((1, 3)),
        b"tool_call_id" => Some((1, 4)),
        b"tool_calls" => Some((LAST, 5)),
        b"function_call" => Some((LAST, 6)),
        _ => None,
    }
}

#[derive(Default)]
struct Fields {
    reached: u8,
    reasoned: bool,
}

impl Fields {
    fn take(
        &mut self,
        rank: u8,
        key: &[u8],
        scanner: &mut Scanner<'_>,
        pieces: &mut Pieces,
        twice: &mut bool,
    ) -> Result<(), Malformed> {
        self.reached = rank;
        match key {
            b"content" => content(scanner, pieces, twice),
            b"name" => field(scanner, pieces, Field::Name),
            b"tool_calls" => scanner.array(|scanner| tool_call(scanner, pieces, twice)),
            b"tool_call_id" => field(scanner, pieces, Field::ToolId),
            b"function_call" => function(scanner, pieces, twice),
            // Some clients send reasoning under both names.
            _ if self.reasoned => scanner.skip().map(drop),
            _ => {
                let before = pieces.bytes();
                field(scanner, pieces, Field::Reasoning)?;
                self.reasoned = pieces.bytes() > before;
                Ok(())
            }
        }
    }
}

/// Begins the message at `start`, whose role may follow later. An error in the role is reported when it is read in
/// order.
fn begin(start: &Scanner<'_>, pieces: &mut Pieces) {
    match start.ahead(b"role") {
        Some(mut scanner) => drop(role(&mut scanner, pieces)),
        None => pieces.begin_message(""),
    }
}

/// Begins a message. The role is hashed in place; a value other than a string counts as empty.
fn role(scanner: &mut Scanner<'_>, pieces: &mut Pieces) -> Result<(), Malformed> {
    pieces.begin_message("");
    if scanner.peek() == Some(b'"') {
        scanner.string(&mut Hashed(pieces))
    } else {
        scanner.skip().map(drop)
    }
}

pub(super) fn tools(scanner: &mut Scanner<'_>, pieces: &mut Pieces) -> Result<(), Malformed> {
    let mut begun = false;
    scanner.array(|scanner| {
        if !std::mem::replace(&mut begun, true) {
            pieces.begin_message("tools");
        }
        pieces.field(Field::Tools);
        scanner.compact(&mut Hashed(pieces))
    })?;
    pieces.end_message();
    Ok(())
}

pub(super) fn content(
    scanner: &mut Scanner<'_>,
    pieces: &mut Pieces,
    twice: &mut bool,
) -> Result<(), Malformed> {
    if scanner.peek() == Some(b'"') {
        field(scanner, pieces, Field::Text)
    } else {
        scanner.array(|scanner| part(scanner, pieces, twice))
    }
}

// Numbers of a part's members.
pub(super) const TYPE: u8 = 0;
const SAID: u8 = 1;
pub(super) const UUID: u8 = 2;

fn part(scanner: &mut Scanner<'_>, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    match &*ahead(scanner, b"type") {
        b"text" | b"input_text" | b"output_text" => said(scanner, pieces, b"text", Field::Text, twice),
        b"refusal" => said(scanner, pieces, b"refusal", Field::Text, twice),
        b"image_url" | b"input_image" => {
            let (mut whole, mut digest, mut uuid) = (scanner.clone(), None, None);
            let mut met = Met::default();
            scanner.object(|scanner, key| match key {
                b"image_url" => {
                    met.note(SAID, twice);
                    image(scanner, &mut digest)
                }
                b"uuid" => {
                    met.note(UUID, twice);
                    uuid = Some(scanner.clone());
                    scanner.skip().map(drop)
                }
                b"type" => {
                    met.note(TYPE, twice);
                    scanner.skip().map(drop)
                }
                _ => scanner.skip().map(drop),
            })?;
            match named(uuid, Medium::Image)?.or(digest) {
                Some(digest) => pieces.media(Field::Image, Medium::Image, digest),
                // The image has neither `uuid` nor URL, for example only a `file_id`.
                None => unnamed(&mut whole, pieces, Medium::Image)?,
            }
            Ok(())
        }
        b"tool_use" => tool_use(scanner, pieces, twice),
        b"tool_result" => tool_result(scanner, pieces, twice),
        b"thinking" => said(scanner, pieces, b"thinking", Field::Reasoning, twice),
        b"image" => source(scanner, pieces, Medium::Image, twice),
        b"document" => source(scanner, pieces, Medium::File, twice),
        b"input_audio" | b"audio_url" => named_medium(scanner, pieces, Medium::Audio, twice),
        b"video_url" => named_medium(scanner, pieces, Medium::Video, twice),
        b"file" | b"input_file" => named_medium(scanner, pieces, Medium::File, twice),
        _ => {
            uuid(&mut scanner.clone(), twice)?;
            pieces.field(Field::Other);
            scanner.compact(&mut Hashed(pieces))
        }
    }
}

/// Reads Anthropic's tool call. `cache_control` moves between turns, so it is skipped here and in all parts.
fn tool_use(scanner: &mut Scanner<'_>, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    let (mut name, mut id, mut met) = (None, None, Met::default());
    scanner.object(|scanner, key| match key {
        b"input" => {
            met.note(SAID, twice);
            pieces.field(Field::ToolArguments);
            scanner.compact(&mut Hashed(pieces))
        }
        b"name" => hold(scanner, &mut name),
        b"id" => hold(scanner, &mut id),
        b"type" => {
            met.note(TYPE, twice);
            scanner.skip().map(drop)
        }
        _ => scanner.skip().map(drop),
    })?;
    held(name, pieces, Field::ToolName)?;
    held(id, pieces, Field::ToolId)
}

fn tool_result(scanner: &mut Scanner<'_>, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    let (mut id, mut met) = (None, Met::default());
    scanner.object(|scanner, key| match key {
        b"content" => {
            met.note(SAID, twice);
            content(scanner, pieces, twice)
        }
        b"tool_use_id" => hold(scanner, &mut id),
        b"type" => {
            met.note(TYPE, twice);
            scanner.skip().map(drop)
        }
        _ => scanner.skip().map(drop),
    })?;
    held(id, pieces, Field::ToolId)
}

fn source(
    scanner: &mut Scanner<'_>,
    pieces: &mut Pieces,
    medium: Medium,
    twice: &mut bool,
) -> Result<(), Malformed> {
    let mut met = Met::default();
    scanner.object(|scanner, key| match key {
        b"source" => {
            met.note(SAID, twice);
            unnamed(scanner, pieces, medium)
        }
        b"type" => {
            met.note(TYPE, twice);
            scanner.skip().map(drop)
        }
        _ => scanner.skip().map(drop),
    })
}

fn said(
    scanner: &mut Scanner<'_>,
    pieces: &mut Pieces,
    name: &[u8],
    of: Field,
    twice: &mut bool,
) -> Result<(), Malformed> {
    let mut met = Met::default();
    scanner.object(|scanner, key| {
        if key == name {
            met.note(SAID, twice);
            return field(scanner, pieces, of);
        }
        if key == b"type" {
            met.note(TYPE, twice);
        }
        scanner.skip().map(drop)
    })
}

fn tool_call(scanner: &mut Scanner<'_>, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    let (mut id, mut met) = (None, Met::default());
    scanner.object(|scanner, key| match key {
        b"function" => {
            met.note(0, twice);
            function(scanner, pieces, twice)
        }
        b"id" => hold(scanner, &mut id),
        _ => scanner.skip().map(drop),
    })?;
    held(id, pieces, Field::ToolId)
}

/// Reads a called function: arguments, then name. Clients write both orders; the name is cheaper to revisit.
fn function(scanner: &mut Scanner<'_>, pieces: &mut Pieces, twice: &mut bool) -> Result<(), Malformed> {
    let (mut name, mut met) = (None, Met::default());
    scanner.object(|scanner, key| match key {
        b"arguments" => {
            met.note(0, twice);
            if scanner.peek() == Some(b'"') {
                return field(scanner, pieces, Field::ToolArguments);
            }
            // Some clients send the arguments as JSON instead of text.
            pieces.field(Field::ToolArguments);
            scanner.compact(&mut Hashed(pieces))
        }
        b"name" => hold(scanner, &mut name),
        _ => scanner.skip().map(drop),
    })?;
    held(name, pieces, Field::ToolName)
}

enum DeferredField<'a> {
    Plain(&'a [u8]),
    At(Scanner<'a>),
}

fn hold<'a>(scanner: &mut Scanner<'a>, place: &mut Option<DeferredField<'a>>) -> Result<(), Malformed> {
    let is_string = scanner.peek() == Some(b'"');
    let start = scanner.clone();
    let plain = if is_string {
        scanner.quoted()?.plain()
    } else {
        scanner.skip()?;
        None
    };
    *place = Some(plain.map_or(DeferredField::At(start), DeferredField::Plain));
    Ok(())
}

fn held(place: Option<DeferredField<'_>>, pieces: &mut Pieces, of: Field) -> Result<(), Malformed> {
    match place {
        None => Ok(()),
        Some(DeferredField::Plain(text)) => {
            pieces.field(of);
            pieces.push(text);
            Ok(())
        }
        Some(DeferredField::At(mut scanner)) => field(&mut scanner, pieces, of),
    }
}

fn field(scanner: &mut Scanner<'_>, pieces: &mut Pieces, field: Field) -> Result<(), Malformed> {
    if scanner.peek() != Some(b'"') {
        return scanner.skip().map(drop);
    }
    pieces.field(field);
    scanner.string(&mut Hashed(pieces))
}

/// Returns the text of a string member of the object that begins here; empty if absent.
fn ahead<'a>(start: &Scanner<'a>, name: &[u8]) -> Cow<'a, [u8]> {
    let Some(mut scanner) = start.ahead(name) else {
        return Cow::default();
    };
    if scanner.peek() == Some(b'"') {
        scanner.quoted().map(Quoted::decoded).unwrap_or_default()
    } else {
        Cow::default()
    }
}
