//! Tracks WebSocket frame boundaries (RFC 6455, section 5.2) in relayed bytes, because the router may insert its own
//! frame only between two others. Reads frame lengths, and in client frames the keys of JSON ([`Keys`]), whatever its
//! encoding ([`Units`]).

mod units;

use self::units::Units;
use protocol::steering::Keys;

/// Close frame for a client: status 1001, "going away" (RFC 6455, sections 5.5.1 and 7.4.1), unmasked.
pub(super) const GOODBYE_TO_CLIENT: [u8; 4] = [0x88, 2, GOING_AWAY[0], GOING_AWAY[1]];
/// Close frame for a worker. Client frames must be masked, to protect intermediate caches from scripts in browsers
/// (section 10.3). No script influences these bytes, so the mask is constant.
pub(super) const GOODBYE_TO_WORKER: [u8; 8] = {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let [high, low] = GOING_AWAY;
    [
        0x88,
        0x82,
        mask[0],
        mask[1],
        mask[2],
        mask[3],
        high ^ mask[0],
        low ^ mask[1],
    ]
};

const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();
const OPCODE: u8 = 0x0f;
const CLOSE: u8 = 0x8;
/// Lowest opcode of control frames, which may stand between the frames of one message.
const CONTROL: u8 = 0x8;
const CONTINUATION: u8 = 0x0;
const MASKED: u8 = 0x80;
/// The longest head: two bytes, a length of eight, a mask of four.
const LONGEST_HEAD: usize = 14;

#[derive(Debug, Default)]
pub(super) struct Frames {
    head: [u8; LONGEST_HEAD],
    /// Number of bytes of the head received.
    has: usize,
    left: u64,
    closed: bool,
    /// Search for fields that steer an engine, in client frames only.
    keys: Option<Keys>,
    units: Units,
    /// The mask at the current position in the payload.
    mask: [u8; 4],
    steering: Option<&'static str>,
}

impl Frames {
    /// Creates a tracker of client frames that searches them for fields that steer an engine.
    pub(super) fn looked_at() -> Self {
        Self {
            keys: Some(Keys::default()),
            ..Self::default()
        }
    }

    pub(super) fn steering(&self) -> Option<&'static str> {
        self.steering
    }

    pub(super) fn at_end(&self) -> bool {
        self.has == 0 && self.left == 0
    }

    /// Returns whether a Close frame has passed. No frame may follow it.
    pub(super) fn closed(&self) -> bool {
        self.closed
    }

    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[self.rest_of_one(bytes)..];
        }
    }

    /// Advances to the end of the current or next frame. Returns the number of bytes that belong to it.
    pub(super) fn rest_of_one(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        if self.left == 0 {
            loop {
                let Some(byte) = bytes.get(at) else { return at };
                self.head[self.has] = *byte;
                self.has += 1;
                at += 1;
                if let Some(payload) = self.payload() {
                    self.begins();
                    (self.left, self.has) = (payload, 0);
                    break;
                }
            }
        }
        let here = (bytes.len() - at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= here as u64;
        self.look_at(&bytes[at..at + here]);
        at + here
    }

    /// Starts a frame whose head is complete.
    fn begins(&mut self) {
        let opcode = self.head[0] & OPCODE;
        self.closed |= opcode == CLOSE;
        self.mask = [0; 4];
        if self.head[1] & MASKED != 0
            && let Some(mask) = self.head[..self.has].last_chunk()
        {
            self.mask = *mask;
        }
        if let Some(keys) = &mut self.keys
            && opcode != CONTINUATION
            && opcode < CONTROL
        {
            *keys = Keys::default();
            self.units = Units::default();
        }
    }

    fn look_at(&mut self, payload: &[u8]) {
        let Some(keys) = &mut self.keys else { return };
        if self.head[0] & OPCODE >= CONTROL {
            return;
        }
        let mask = self.mask.iter().cycle();
        let plain: Vec<u8> = payload.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        self.mask.rotate_left(payload.len() % 4);
        self.steering = self.steering.or(keys.push(&self.units.push(plain)));
    }

    /// Returns the payload's length, once the head is complete.
    fn payload(&self) -> Option<u64> {
        let [_, second, rest @ ..] = &self.head;
        let mask = if second & MASKED == 0 { 0 } else { 4 };
        let (extended, length) = match second & !MASKED {
            126 => (2, u64::from(u16::from_be_bytes([rest[0], rest[1]]))),
            127 => {
                let [a, b, c, d, e, f, g, h, ..] = *rest;
                (8, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            short => (0, u64::from(short)),
        };
        (self.has >= 2 && self.has == 2 + extended + mask).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(opcode: u8, payload: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { MASKED } else { 0 };
        let mut frame = vec![0x80 | opcode];
        match payload {
            0..126 => frame.push(mask | payload as u8),
            126..65536 => {
                frame.push(mask | 126);
                frame.extend((payload as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend(std::iter::repeat_n(0x88, payload + if masked { 4 } else { 0 }));
        frame
    }

    proptest! {
        #[test]
        fn it_is_between_frames_exactly_where_they_end(
            frames in prop::collection::vec((0_u8..3, prop_oneof![0_usize..300, 65_000_usize..66_000], any::<bool>()), 1..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let (mut stream, mut ends) = (Vec::new(), vec![0]);
            for (opcode, payload, masked) in frames {
                stream.extend(frame(opcode, payload, masked));
                ends.push(stream.len());
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain(ends.clone()).collect();
            cuts.sort_unstable();
            let (mut follower, mut at) = (Frames::default(), 0);
            for cut in cuts {
                follower.pass(&stream[at..cut]);
                at = cut;
                prop_assert_eq!(follower.at_end(), ends.contains(&at), "{} of {:?}", at, ends);
            }
            prop_assert!(!follower.closed());
        }
    }

    #[test]
    fn the_rest_of_a_frame_leaves_what_is_behind_it() {
        let (first, second) = (frame(1, 200, true), frame(8, 2, false));
        let mut frames = Frames::default();
        frames.pass(&first[..7]);
        let behind = [&first[7..], &second].concat();
        assert_eq!(frames.rest_of_one(&behind), first.len() - 7);
        assert!(frames.at_end() && !frames.closed());
        assert_eq!(frames.rest_of_one(&second), second.len());
        assert!(frames.at_end() && frames.closed());
    }

    #[test]
    fn a_field_is_found_behind_any_mask_and_in_any_fragments() {
        let masked = |opcode: u8, text: &[u8], mask: [u8; 4]| {
            let mut frame = vec![opcode, MASKED | u8::try_from(text.len()).unwrap()];
            frame.extend_from_slice(&mask);
            frame.extend(
                text.iter()
                    .zip(mask.iter().cycle())
                    .map(|(byte, mask)| byte ^ mask),
            );
            frame
        };
        let stream = [
            masked(0x81, b"{\"a\":\"", [1, 2, 3, 4]),
            masked(0x01, b"{\"kv_trans", [0x37, 0xfa, 0x21, 0x3d]),
            masked(0x89, b"\"", [5, 6, 7, 8]),
            masked(0x80, b"fer_params\":{}}", [9, 9, 9, 9]),
        ]
        .concat();
        for size in 1..stream.len() {
            let mut frames = Frames::looked_at();
            stream.chunks(size).for_each(|piece| frames.pass(piece));
            assert_eq!(frames.steering(), Some("kv_transfer_params"), "{size}");
            assert!(frames.at_end());
        }
    }

    #[test]
    fn a_field_is_found_in_a_binary_message_in_utf_16() {
        let text = "{\"\u{4e22}\": 1, \"kv_transfer_params\": {}}";
        for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
            let payload: Vec<u8> = text.encode_utf16().flat_map(bytes).collect();
            let mut frame = vec![0x82, MASKED | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0];
            frame.extend(payload);
            for size in 1..frame.len() {
                let mut frames = Frames::looked_at();
                frame.chunks(size).for_each(|piece| frames.pass(piece));
                assert_eq!(frames.steering(), Some("kv_transfer_params"), "{size}");
            }
        }
    }

    #[test]
    fn a_goodbye_is_one_frame() {
        for goodbye in [&GOODBYE_TO_CLIENT[..], &GOODBYE_TO_WORKER] {
            let mut frames = Frames::default();
            assert_eq!(frames.rest_of_one(goodbye), goodbye.len());
            assert!(frames.at_end() && frames.closed());
        }
    }
}
