//! The messages of a join. Numbers are little-endian; each message begins with its type.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

const ASK: u64 = u64::from_le_bytes(*b"tr-ask-1");
const OFFER: u64 = u64::from_le_bytes(*b"tr-off-1");
const WANT: u64 = u64::from_le_bytes(*b"tr-wnt-1");
const CHUNK: u64 = u64::from_le_bytes(*b"tr-chk-1");

const LONGEST_NAME: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfferRequest {
    pub(super) id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) id: u64,
    /// Uptime in milliseconds; 0 without a snapshot to offer.
    pub(super) up_ms: u64,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Want {
    /// Number of the snapshot; 0 in the request for the first chunk, which means any.
    pub(super) snapshot: u64,
    pub(super) number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) snapshot: u64,
    pub(super) number: u32,
    pub(super) of: u32,
    pub(super) bytes: Bytes,
}

fn begins(message: &mut Bytes, with: u64) -> Option<()> {
    (message.try_get_u64_le().ok()? == with).then_some(())
}

impl OfferRequest {
    pub(super) fn bytes(self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(ASK);
        out.put_u64_le(self.id);
        out.freeze()
    }

    pub(super) fn read(mut message: Bytes) -> Option<Self> {
        begins(&mut message, ASK)?;
        let id = message.try_get_u64_le().ok()?;
        message.is_empty().then_some(Self { id })
    }
}

impl Offer {
    pub(super) fn bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(OFFER);
        out.put_u64_le(self.id);
        out.put_u64_le(self.up_ms);
        out.put_slice(self.name.as_bytes());
        out.freeze()
    }

    pub(super) fn read(mut message: Bytes) -> Option<Self> {
        begins(&mut message, OFFER)?;
        let (id, up_ms) = (message.try_get_u64_le().ok()?, message.try_get_u64_le().ok()?);
        let name = std::str::from_utf8(&message).ok()?;
        let is_name = name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
        is_name.then(|| Self {
            id,
            up_ms,
            name: name.to_owned(),
        })
    }
}

impl Want {
    pub(super) fn bytes(self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(WANT);
        out.put_u64_le(self.snapshot);
        out.put_u32_le(self.number);
        out.freeze()
    }

    pub(super) fn read(mut message: Bytes) -> Option<Self> {
        begins(&mut message, WANT)?;
        let (snapshot, number) = (message.try_get_u64_le().ok()?, message.try_get_u32_le().ok()?);
        message.is_empty().then_some(Self { snapshot, number })
    }
}

impl Chunk {
    pub(super) fn bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.bytes.len() + 24);
        out.put_u64_le(CHUNK);
        out.put_u64_le(self.snapshot);
        out.put_u32_le(self.number);
        out.put_u32_le(self.of);
        out.put_slice(&self.bytes);
        out.freeze()
    }

    pub(super) fn read(mut message: Bytes) -> Option<Self> {
        begins(&mut message, CHUNK)?;
        Some(Self {
            snapshot: message.try_get_u64_le().ok()?,
            number: message.try_get_u32_le().ok()?,
            of: message.try_get_u32_le().ok()?,
            bytes: message,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn join_messages_survive_a_round_trip_and_others_are_rejected() {
        let ask = OfferRequest { id: 7 };
        let offer = Offer {
            id: 8,
            up_ms: 1_234,
            name: "router-0".to_owned(),
        };
        let want = Want {
            snapshot: 9,
            number: 3,
        };
        let chunk = Chunk {
            snapshot: 9,
            number: 3,
            of: 4,
            bytes: Bytes::from_static(b"part"),
        };
        assert_eq!(OfferRequest::read(ask.bytes()), Some(ask));
        assert_eq!(Offer::read(offer.bytes()), Some(offer.clone()));
        assert_eq!(Want::read(want.bytes()), Some(want));
        assert_eq!(Chunk::read(chunk.bytes()), Some(chunk));
        assert_eq!(OfferRequest::read(want.bytes()), None);
        assert_eq!(Want::read(ask.bytes()), None);
        let unprintable = Offer {
            name: "a\nb".to_owned(),
            ..offer
        };
        assert_eq!(Offer::read(unprintable.bytes()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(kind in prop::sample::select(vec![ASK, OFFER, WANT, CHUNK]), rest in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut message = kind.to_le_bytes().to_vec();
            message.extend_from_slice(&rest);
            let message = Bytes::from(message);
            let _ = OfferRequest::read(message.clone());
            let _ = Offer::read(message.clone());
            let _ = Want::read(message.clone());
            let _ = Chunk::read(message);
        }
    }
}
