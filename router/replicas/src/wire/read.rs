//! Parses messages of other replicas, within bounds.

use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::Millis;

use super::{
    ANSWERED, BEGUN, CachedTurn, GONE, HINTED, LONGEST_BYTES, LONGEST_NAME, MOST_KEYS, MOST_TIPS,
    MOST_WORKERS, MessageBody, MessageHead, MessageKind, NAMED, News, Roll, SENT, Sent, TRIMMED, TrimNotice,
    UnderWay, VERSION, WireError,
};

/// Parses a whole message. Fails if it has another version, or is malformed.
pub(crate) fn read(bytes: &[u8]) -> Result<(MessageHead, MessageBody), WireError> {
    let mut reader = MessageReader {
        bytes,
        workers: Vec::new(),
    };
    match reader.byte()? {
        VERSION => {}
        other => return Err(WireError::Version(other)),
    }
    let kind = match reader.byte()? {
        0 => MessageKind::Turns,
        1 => MessageKind::Roll,
        _ => return Err(WireError::Malformed),
    };
    let head = MessageHead {
        kind,
        sender: reader.word()?,
        number: reader.varint()?,
    };
    let workers = reader.count(MOST_WORKERS, 8)?;
    reader.workers = (0..workers).map(|_| reader.word()).collect::<Result<_, _>>()?;
    let body = match kind {
        MessageKind::Turns => {
            let mut news = Vec::new();
            while !reader.bytes.is_empty() {
                news.push(reader.news()?);
            }
            MessageBody::Turns(news)
        }
        MessageKind::Roll => MessageBody::Roll(reader.roll()?),
    };
    if reader.bytes.is_empty() {
        Ok((head, body))
    } else {
        Err(WireError::Malformed)
    }
}

struct MessageReader<'a> {
    bytes: &'a [u8],
    workers: Vec<u64>,
}

impl MessageReader<'_> {
    fn byte(&mut self) -> Result<u8, WireError> {
        let (&byte, rest) = self.bytes.split_first().ok_or(WireError::Short)?;
        self.bytes = rest;
        Ok(byte)
    }

    fn word(&mut self) -> Result<u64, WireError> {
        let (word, rest) = self.bytes.split_first_chunk::<8>().ok_or(WireError::Short)?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part
                .checked_shl(shift)
                .is_none_or(|shifted| shifted >> shift != part)
            {
                return Err(WireError::Malformed);
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError::Malformed)
    }

    /// Reads a count of items that take at least `bytes_each` bytes, bounded by the remaining bytes.
    fn count(&mut self, most: usize, bytes_each: usize) -> Result<usize, WireError> {
        let count = usize::try_from(self.varint()?).map_err(|_| WireError::Malformed)?;
        if count > most {
            return Err(WireError::Malformed);
        }
        if count * bytes_each > self.bytes.len() {
            return Err(WireError::Short);
        }
        Ok(count)
    }

    fn time(&mut self) -> Result<Millis, WireError> {
        match self.varint()? {
            tenths if tenths <= 1_000_000_000_000 => Ok(Millis(tenths as f64 / 10.0)),
            _ => Err(WireError::Malformed),
        }
    }

    fn worker(&mut self, at: u64) -> Result<u64, WireError> {
        let at = usize::try_from(at).map_err(|_| WireError::Malformed)?;
        self.workers.get(at).copied().ok_or(WireError::Malformed)
    }

    fn keys(&mut self, before: u64) -> Result<Chain, WireError> {
        let count = self.count(MOST_KEYS, 9)?;
        let mut end = before;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            let hash = PrefixHash(self.word()?);
            end = self.tokens()?.checked_add(end).ok_or(WireError::Malformed)?;
            keys.push((hash, end));
        }
        Ok(Chain::of_ends(keys))
    }

    /// Reads a number of tokens below 2³², which no prompt exceeds.
    fn tokens(&mut self) -> Result<u64, WireError> {
        match self.varint()? {
            tokens if tokens <= u64::from(u32::MAX) => Ok(tokens),
            _ => Err(WireError::Malformed),
        }
    }

    fn news(&mut self) -> Result<News, WireError> {
        let what = self.byte()?;
        if what == HINTED {
            let at = self.varint()?;
            return Ok(News::Hinted {
                worker: self.worker(at)?,
                epoch: self.varint()?,
            });
        }
        if what == TRIMMED {
            return Ok(News::Trimmed(self.trimmed()?));
        }
        let turn = self.varint()?;
        if what & !NAMED == SENT {
            let at = self.varint()?;
            let (worker, age, prefill) = (self.worker(at)?, self.time()?, self.time()?);
            let session = if what & NAMED == 0 {
                None
            } else {
                Some(self.word()?)
            };
            return Ok(News::Sent(Sent {
                turn,
                worker,
                age,
                prefill,
                session,
                keys: self.keys(0)?,
            }));
        }
        let age = self.time()?;
        match what {
            BEGUN => Ok(News::Begun { turn, age }),
            GONE => Ok(News::Gone { turn, age }),
            ANSWERED => Ok(News::Answered {
                turn,
                age,
                left: self.left()?,
            }),
            _ => Err(WireError::Malformed),
        }
    }

    fn trimmed(&mut self) -> Result<TrimNotice, WireError> {
        let at = self.varint()?;
        let (worker, keep) = (self.worker(at)?, self.tokens()?);
        let count = self.count(MOST_TIPS, 8)?;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            keys.push(PrefixHash(self.word()?));
        }
        Ok(TrimNotice { worker, keep, keys })
    }

    fn left(&mut self) -> Result<CachedTurn, WireError> {
        let (total, evict_first) = (self.tokens()?, self.tokens()?);
        let flags = self.byte()?;
        if flags > 3 {
            return Err(WireError::Malformed);
        }
        let parent = if flags & 1 == 0 {
            None
        } else {
            Some(PrefixHash(self.word()?))
        };
        let before = self.tokens()?;
        Ok(CachedTurn {
            total,
            evict_first,
            parent,
            open: flags & 2 != 0,
            before,
            reply: self.keys(before)?,
        })
    }

    fn roll(&mut self) -> Result<Roll, WireError> {
        let length = usize::from(self.byte()?);
        if length > LONGEST_NAME || length > self.bytes.len() {
            return Err(WireError::Malformed);
        }
        let (name, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        let name = std::str::from_utf8(name).map_err(|_| WireError::Malformed)?;
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(WireError::Malformed);
        }
        let name = name.to_owned();
        let draining = self.byte()? != 0;
        let (from, to) = (self.varint()?, self.varint()?);
        let count = self.count(LONGEST_BYTES, 4)?;
        let mut turns = Vec::with_capacity(count);
        let mut turn = from;
        for _ in 0..count {
            turn = self.varint()?.checked_add(turn).ok_or(WireError::Malformed)?;
            let at = self.varint()?;
            turns.push(UnderWay {
                turn,
                worker: self.worker(at >> 1)?,
                begun: at & 1 == 1,
                age: self.time()?,
                prefill: self.time()?,
            });
        }
        Ok(Roll {
            name,
            draining,
            from,
            to,
            turns,
        })
    }
}
