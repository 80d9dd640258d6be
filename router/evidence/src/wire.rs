//! Cache events in the engines' wire format: msgpack, `[timestamp, [event…], rank]`.
//!
//! vLLM since 0.24 and SGLang since 0.5.20 send an event as a map with a `type`; earlier versions as an array that
//! begins with the type and whose length grew by version. Unknown fields and types are skipped, so that later versions
//! can be read. Hashes are unsigned, signed (the same 64 bits) or byte strings (whose last eight bytes are the integer
//! form).
//!
//! No allocation depends only on a declared length, nothing recurses, and the hashes and events of a batch are bounded.
//! Rejected: `rmp-serde`. A derived decoder allocates the token ids, by far the largest part, and buffers both forms
//! for an untagged union; a written one cannot look ahead for an event's type, which may come last.

mod msgpack;

use msgpack::{Reader, Type};
use policy::evidence::{Event, Medium, Stored};
use xxhash_rust::xxh3::xxh3_64;

/// Largest number of events in a batch.
const MAX_EVENTS: u32 = 1 << 17;
/// Largest number of hashes in an event.
const MAX_HASHES: u32 = 1 << 20;
/// Largest number of hashes in a batch: as many as the index keeps per worker. A hash takes one byte or more on the
/// wire, and eight in memory.
const MAX_BATCH_HASHES: usize = 1 << 21;

/// The reason why a batch cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The batch is truncated.
    #[error("the batch is truncated at byte {0}")]
    Short(usize),
    /// A value has a type that the field cannot have.
    #[error("{field}: found {found:?} at byte {at}")]
    Type {
        /// Name of the field.
        field: &'static str,
        /// Type of the value.
        found: Type,
        /// Offset of the value, in bytes.
        at: usize,
    },
    /// A list has too many elements.
    #[error("{field}: too many ({count})")]
    TooMany {
        /// Name of the list.
        field: &'static str,
        /// Number of elements.
        count: u32,
    },
    /// A required field of an event is missing.
    #[error("an event without {0}")]
    Missing(&'static str),
}

/// The common fields of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// Creation time by the worker's clock, in seconds since 1970.
    pub at_s: Option<f64>,
    /// The data-parallel rank of the cache.
    pub rank: Option<u32>,
}

/// Decodes a batch. Passes each known event to `take`, and returns the common fields. Fails at the first invalid value;
/// events before it were passed on.
pub fn decode(payload: &[u8], mut take: impl FnMut(Event)) -> Result<Batch, BatchError> {
    let mut reader = Reader::new(payload);
    let parts = reader.array("batch")?;
    if parts < 2 {
        return Err(BatchError::Missing("events"));
    }
    let mut batch = Batch {
        at_s: reader.number()?,
        rank: None,
    };
    let events = reader.array("events")?;
    if events > MAX_EVENTS {
        return Err(BatchError::TooMany {
            field: "events",
            count: events,
        });
    }
    let mut hashes = 0;
    for _ in 0..events {
        let event = match reader.peek()? {
            Type::Map => map_event(&mut reader)?,
            Type::Array => array_event(&mut reader)?,
            _ => {
                reader.skip()?;
                None
            }
        };
        if let Some(event) = event {
            hashes += event.hashes().len();
            if hashes > MAX_BATCH_HASHES {
                return Err(BatchError::TooMany {
                    field: "block_hashes",
                    count: hashes as u32,
                });
            }
            take(event);
        }
    }
    if parts >= 3 && !reader.nil()? {
        batch.rank = u32::try_from(reader.integer("rank")?).ok();
    }
    Ok(batch)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CacheEventKind {
    Stored,
    Removed,
    Cleared,
}

impl CacheEventKind {
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }
}

#[derive(Default)]
struct EventFields {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    block_size: u32,
    medium: Medium,
    session: Option<u64>,
    /// Number of token ids.
    tokens: u32,
    group: u32,
    partial: bool,
}

impl EventFields {
    fn event(self, kind: CacheEventKind) -> Result<Option<Event>, BatchError> {
        let hashes = self.hashes;
        let hashes = || hashes.ok_or(BatchError::Missing("block_hashes"));
        Ok(Some(match kind {
            // A stored block without tokens and parent is a copy in another tier, of unknown prefix.
            CacheEventKind::Stored
                if self.tokens == 0 && self.parent.is_none() && self.medium != Medium::Gpu =>
            {
                Event::Copied {
                    hashes: hashes()?,
                    medium: self.medium,
                    group: self.group,
                }
            }
            CacheEventKind::Stored => Event::Stored(Stored {
                hashes: hashes()?,
                parent: self.parent,
                block_size: self.block_size,
                medium: self.medium,
                session: self.session,
                group: self.group,
                partial: self.partial,
            }),
            CacheEventKind::Removed => Event::Removed {
                hashes: hashes()?,
                medium: self.medium,
                group: self.group,
            },
            CacheEventKind::Cleared => Event::Cleared,
        }))
    }

    fn read(&mut self, field: &[u8], reader: &mut Reader<'_>) -> Result<(), BatchError> {
        match field {
            b"block_hashes" => self.hashes = Some(hashes(reader)?),
            b"parent_block_hash" => {
                self.parent = optional(reader, |reader| hash(reader, "parent_block_hash"))?
            }
            b"block_size" => {
                let size = reader.integer("block_size")?;
                self.block_size = u32::try_from(size).unwrap_or(0);
            }
            b"medium" => {
                let name = optional(reader, |reader| reader.string("medium"))?;
                self.medium = medium(name.unwrap_or_default());
            }
            b"session_id" => {
                let name = optional(reader, |reader| reader.string("session_id"))?;
                self.session = name.map(xxh3_64);
            }
            b"group_idx" => {
                let group = optional(reader, |reader| reader.integer("group_idx"))?;
                self.group = group.map_or(0, |group| u32::try_from(group).unwrap_or(u32::MAX));
            }
            b"kv_cache_spec_kind" => {
                let name = optional(reader, |reader| reader.string("kv_cache_spec_kind"))?;
                self.partial = name.is_some_and(is_partial);
            }
            b"token_ids" => {
                let mut ahead = reader.clone();
                self.tokens = optional(&mut ahead, |reader| reader.array("token_ids"))?.unwrap_or(0);
                reader.skip()?;
            }
            _ => reader.skip()?,
        }
        Ok(())
    }
}

fn map_event(reader: &mut Reader<'_>) -> Result<Option<Event>, BatchError> {
    // The type may come last, and the other fields depend on it.
    let mut ahead = reader.clone();
    let mut kind = None;
    for _ in 0..ahead.map("event")? {
        if ahead.string("field")? == b"type" {
            kind = CacheEventKind::of(ahead.string("type")?);
        } else {
            ahead.skip()?;
        }
    }
    let Some(kind) = kind else {
        *reader = ahead;
        return Ok(None);
    };
    let mut fields = EventFields::default();
    for _ in 0..reader.map("event")? {
        let field = reader.string("field")?;
        fields.read(field, reader)?;
    }
    fields.event(kind)
}

fn array_event(reader: &mut Reader<'_>) -> Result<Option<Event>, BatchError> {
    const STORED: [&[u8]; 9] = [
        b"block_hashes",
        b"parent_block_hash",
        b"token_ids",
        b"block_size",
        b"lora_id",
        b"medium",
        b"lora_name",
        b"extra_keys",
        b"group_idx",
    ];
    const REMOVED: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];
    let length = reader.array("event")?;
    if length == 0 {
        return Ok(None);
    }
    let kind = CacheEventKind::of(reader.string("type")?);
    let names: &[&[u8]] = match kind {
        Some(CacheEventKind::Stored) => &STORED,
        Some(CacheEventKind::Removed) => &REMOVED,
        _ => &[],
    };
    let mut fields = EventFields::default();
    for at in 0..length as usize - 1 {
        match names.get(at) {
            Some(name) => fields.read(name, reader)?,
            None => reader.skip()?,
        }
    }
    kind.map_or(Ok(None), |kind| fields.event(kind))
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<u64>, BatchError> {
    let count = reader.array("block_hashes")?;
    if count > MAX_HASHES {
        return Err(BatchError::TooMany {
            field: "block_hashes",
            count,
        });
    }
    // A hash takes at least one byte, so the remaining bytes bound the allocation.
    let mut hashes = Vec::with_capacity((count as usize).min(reader.left()));
    for _ in 0..count {
        hashes.push(hash(reader, "block_hashes")?);
    }
    Ok(hashes)
}

fn hash(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, BatchError> {
    let at = reader.at();
    match reader.peek()? {
        Type::Bytes => match reader.bytes(field)?.last_chunk::<8>() {
            Some(last) => Ok(u64::from_be_bytes(*last)),
            None => Err(BatchError::Type {
                field,
                found: Type::Bytes,
                at,
            }),
        },
        // Signed and unsigned forms have the same 64 bits.
        _ => reader.integer(field).map(|number| number as u64),
    }
}

fn optional<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, BatchError>,
) -> Result<Option<T>, BatchError> {
    if reader.nil()? {
        return Ok(None);
    }
    read(reader).map(Some)
}

/// Returns whether a kind of layer attends to only a part of the prompt. Unknown kinds count as full attention.
fn is_partial(kind: &[u8]) -> bool {
    const PARTIAL: [&[u8]; 4] = [b"sliding_window", b"chunked_local", b"mamba", b"cross_attention"];
    PARTIAL.iter().any(|name| kind.starts_with(name))
}

fn medium(name: &[u8]) -> Medium {
    match name {
        b"CPU" | b"CPU_PINNED" | b"HOST" => Medium::Host,
        b"DISK" => Medium::Disk,
        b"" | b"GPU" => Medium::Gpu,
        _ => Medium::External,
    }
}

#[cfg(test)]
mod tests;
