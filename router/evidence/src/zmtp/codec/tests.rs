use proptest::prelude::*;

use super::*;

const BOUND: usize = 1 << 16;

/// A frame as encoded on the wire.
#[derive(Clone, Debug)]
struct Frame {
    is_command: bool,
    has_more: bool,
    /// Whether the frame is encoded as a long one even if a short one would suffice.
    is_long: bool,
    body: Vec<u8>,
}

impl Frame {
    fn put(&self, out: &mut Vec<u8>) {
        if self.is_long && self.body.len() <= 255 {
            let kind = if self.is_command { COMMAND } else { 0 };
            out.push(u8::from(self.has_more) | kind | LONG);
            out.extend((self.body.len() as u64).to_be_bytes());
            out.extend(&self.body);
        } else {
            put_frame(out, self.is_command, self.has_more, &self.body);
        }
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let body = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..40),
        2 => prop::collection::vec(any::<u8>(), 250..700),
        1 => prop::collection::vec(any::<u8>(), 4000..4200),
        1 => prop::collection::vec(any::<u8>(), 9000..9100),
    ];
    (0..4_u8, any::<bool>(), body).prop_map(|(kind, is_long, body)| Frame {
        is_command: kind == 0,
        has_more: kind == 1 || kind == 2,
        is_long,
        body,
    })
}

/// Decodes like [`Decoder`], but indexes into all bytes at once.
fn naive(mut bytes: &[u8], bound: usize) -> (Vec<Incoming>, Option<CodecError>) {
    let (mut found, mut frames) = (Vec::new(), Vec::<Bytes>::new());
    while let Some(&flags) = bytes.first() {
        if flags > 7 || flags & 5 == 5 {
            return (found, Some(CodecError::Flags(flags)));
        }
        let width = if flags & LONG == 0 { 1 } else { 8 };
        let Some(length) = bytes.get(1..=width) else { break };
        let length = length.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let before: usize = frames.iter().map(Bytes::len).sum();
        let total = u128::from(length) + before as u128;
        if flags & COMMAND != 0 && length > MAX_COMMAND_BYTES as u64 {
            return (found, Some(CodecError::CommandBytes(length)));
        }
        if flags & COMMAND == 0 && frames.len() == MAX_FRAMES {
            return (found, Some(CodecError::Frames));
        }
        if flags & COMMAND == 0 && total > bound as u128 {
            let declared = u64::try_from(total).unwrap_or(u64::MAX);
            return (found, Some(CodecError::MessageBytes { declared, bound }));
        }
        let Some(body) = bytes.get(1 + width..1 + width + length as usize) else {
            break;
        };
        bytes = &bytes[1 + width + body.len()..];
        let body = Bytes::copy_from_slice(body);
        match flags & (COMMAND | MORE) {
            0 => {
                frames.push(body);
                found.push(Incoming::Message(std::mem::take(&mut frames)));
            }
            MORE => frames.push(body),
            _ => found.push(Incoming::Command(body)),
        }
    }
    (found, None)
}

/// Decodes bytes in pieces of these lengths, repeated.
fn in_pieces(bytes: &[u8], pieces: &[usize], bound: usize) -> (Vec<Incoming>, Option<CodecError>) {
    let mut decoder = Decoder::new(bound);
    let (mut found, mut arrived, mut rest) = (Vec::new(), 0, bytes);
    for length in pieces.iter().cycle() {
        let (mut piece, after) = rest.split_at((*length).min(rest.len()));
        (arrived, rest) = (arrived + piece.len(), after);
        loop {
            match decoder.read(&mut piece) {
                Ok(Some(incoming)) => found.push(incoming),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        assert!(piece.is_empty(), "what needs more bytes has taken all there are");
        let most = (2 * arrived + FIRST_BODY_BYTES).min(bound + FIRST_BODY_BYTES);
        assert!(
            decoder.allocated_bytes() <= most,
            "{} of {arrived}",
            decoder.allocated_bytes()
        );
        if rest.is_empty() {
            return (found, None);
        }
    }
    unreachable!("there is a piece")
}

proptest! {
    #[test]
    fn frames_in_pieces_are_read_as_the_naive_twin_reads_them_whole(
        frames in prop::collection::vec(frame(), 0..24),
        damage in prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
        pieces in prop::collection::vec(prop_oneof![1..4_usize, 1..200_usize, 1..20_000_usize], 1..8),
        bound in prop_oneof![Just(BOUND), 1..3000_usize],
    ) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.put(&mut bytes));
        if let Some((at, byte)) = damage && !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        prop_assert_eq!(in_pieces(&bytes, &pieces, bound), naive(&bytes, bound));
    }

    #[test]
    fn arbitrary_commands_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok((name, data)) = name(&bytes) {
            prop_assert_eq!(1 + name.len() + data.len(), bytes.len());
            let _ = socket_type(data);
        }
    }
}

#[test]
fn a_declared_length_allocates_nothing() {
    for length in [1 << 62, u64::MAX, BOUND as u64 + 1] {
        let mut head = vec![LONG];
        head.extend(length.to_be_bytes());
        let mut decoder = Decoder::new(BOUND);
        let refused = decoder.read(&mut &head[..]);
        assert_eq!(
            refused,
            Err(CodecError::MessageBytes {
                declared: length,
                bound: BOUND
            })
        );
        assert_eq!(decoder.allocated_bytes(), 0);
    }
    let mut head = vec![LONG];
    head.extend((BOUND as u64).to_be_bytes());
    let mut decoder = Decoder::new(BOUND);
    assert_eq!(decoder.read(&mut &head[..]), Ok(None));
    assert_eq!(decoder.allocated_bytes(), FIRST_BODY_BYTES);
}

#[test]
fn a_message_is_bounded_over_all_of_its_frames_and_in_their_number() {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, false, true, &[0; BOUND - 1]);
    put_frame(&mut bytes, false, true, &[0; 1]);
    put_frame(&mut bytes, false, false, &[]);
    let mut decoder = Decoder::new(BOUND);
    assert!(
        matches!(decoder.read(&mut &bytes[..]), Ok(Some(Incoming::Message(frames))) if frames.len() == 3)
    );
    let mut bytes = Vec::new();
    put_frame(&mut bytes, false, true, &[0; BOUND]);
    put_frame(&mut bytes, false, false, &[0; 1]);
    let refused = decoder.read(&mut &bytes[..]);
    assert!(
        matches!(refused, Err(CodecError::MessageBytes { .. })),
        "{refused:?}"
    );
    let mut bytes = Vec::new();
    (0..=MAX_FRAMES).for_each(|_| put_frame(&mut bytes, false, true, &[]));
    assert_eq!(Decoder::new(BOUND).read(&mut &bytes[..]), Err(CodecError::Frames));
}

#[test]
fn a_greeting_is_checked_for_its_protocol_version_and_mechanism() {
    assert_eq!(check_greeting(&greeting()), Ok(()));
    let with = |at: usize, byte: u8| {
        let mut greeting = greeting();
        greeting[at] = byte;
        check_greeting(&greeting)
    };
    assert_eq!(with(11, 1), Ok(()), "a peer of 3.1 speaks 3.0 with this client");
    assert_eq!(with(8, 1), Ok(()), "padding");
    assert_eq!(with(0, b'H'), Err(CodecError::Greeting));
    assert_eq!(with(9, 0), Err(CodecError::Greeting));
    assert_eq!(with(10, 1), Err(CodecError::Version(1)));
    assert_eq!(with(12, b'n'), Err(CodecError::Mechanism));
    assert_eq!(with(16, b'X'), Err(CodecError::Mechanism));
}

#[test]
fn the_socket_type_is_found_among_other_properties() {
    let (named, data) = name(b"\x05READY\x08Identity\0\0\0\x02me\x0bsocket-type\0\0\0\x03PUB").unwrap();
    assert_eq!((named, socket_type(data)), (&b"READY"[..], Ok(&b"PUB"[..])));
    let own = ready("DEALER");
    assert_eq!(socket_type(name(&own).unwrap().1), Ok(&b"DEALER"[..]));
    for data in [
        &b""[..],
        b"\x0bSocket-Type",
        b"\x0bSocket-Type\xff\xff\xff\xffPUB",
        b"\x01X\0\0\0\0",
    ] {
        assert_eq!(socket_type(data), Err(CodecError::Command));
    }
}
