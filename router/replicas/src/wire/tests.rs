use proptest::prelude::*;

use super::*;

fn chain(seed: u64, keys: usize) -> Chain {
    let key = |at: u64| (PrefixHash(seed.wrapping_mul(at + 7)), 64 * (at + 1));
    Chain::of_ends((0..keys as u64).map(key).collect())
}

fn head(kind: MessageKind) -> MessageHead {
    MessageHead {
        kind,
        sender: 0xfeed,
        number: 300,
    }
}

fn turns() -> Vec<News> {
    let left = CachedTurn {
        total: 250,
        evict_first: 30,
        parent: Some(PrefixHash(9)),
        open: true,
        before: 192,
        reply: Chain::of_ends(vec![(PrefixHash(5), 230), (PrefixHash(6), 250)]),
    };
    vec![
        News::Sent(Sent {
            turn: 1000,
            worker: 77,
            age: Millis(2.5),
            prefill: Millis(812.3),
            session: Some(u64::MAX),
            keys: chain(3, 300),
        }),
        News::Sent(Sent {
            turn: 1001,
            worker: 78,
            age: Millis::ZERO,
            prefill: Millis::ZERO,
            session: None,
            keys: Chain::new(),
        }),
        News::Begun {
            turn: 1000,
            age: Millis(0.1),
        },
        News::Answered {
            turn: 1000,
            age: Millis(1.0),
            left,
        },
        News::Gone {
            turn: 1001,
            age: Millis(0.0),
        },
        News::Hinted {
            worker: 77,
            epoch: 1 << 60,
        },
        News::Trimmed(TrimNotice {
            worker: 78,
            keep: 4_096,
            keys: vec![PrefixHash(6), PrefixHash(5)],
        }),
    ]
}

fn write(news: &[News]) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    for news in news {
        match news {
            News::Sent(sent) => writer.sent(sent, &EncodedKeys::of(&sent.keys, 0, |end| end)),
            News::Begun { turn, age } => writer.begun(*turn, *age),
            News::Answered { turn, age, left } => {
                let keys = EncodedKeys::of(&left.reply, left.before, |end| end);
                writer.answered(*turn, *age, &CachedTurnBytes::of(left, &keys));
            }
            News::Gone { turn, age } => writer.gone(*turn, *age),
            News::Hinted { worker, epoch } => writer.hinted(*worker, *epoch),
            News::Trimmed(trimmed) => writer.trimmed(trimmed),
        }
    }
    writer.take(head(MessageKind::Turns))
}

#[test]
fn turns_survive_a_round_trip() {
    let message = write(&turns());
    assert_eq!(
        read(&message),
        Ok((head(MessageKind::Turns), MessageBody::Turns(turns())))
    );
    assert!(message.len() < 300 * 10 + 200, "{} bytes", message.len());
}

#[test]
fn a_roll_call_survives_a_round_trip() {
    let under_way = |turn, worker, begun| UnderWay {
        turn,
        worker,
        begun,
        age: Millis(1234.5),
        prefill: Millis(99.9),
    };
    let roll = Roll {
        name: "router-1".to_owned(),
        draining: true,
        from: 40,
        to: 1 << 40,
        turns: vec![
            under_way(40, 5, false),
            under_way(41, 6, true),
            under_way(1 << 39, 5, true),
        ],
    };
    let mut writer = MessageWriter::default();
    writer.roll(&roll);
    let message = writer.take(head(MessageKind::Roll));
    assert!(writer.is_empty());
    assert_eq!(
        read(&message),
        Ok((head(MessageKind::Roll), MessageBody::Roll(roll)))
    );
}

#[test]
fn an_overlong_prompt_is_truncated() {
    let sent = |keys| Sent {
        turn: 1,
        worker: 1,
        age: Millis::ZERO,
        prefill: Millis::ZERO,
        session: None,
        keys,
    };
    let long = sent(chain(3, MOST_KEYS + 50));
    let message = write(&[News::Sent(long)]);
    assert!(message.len() <= LONGEST_BYTES);
    let (_, body) = read(&message).unwrap();
    assert_eq!(
        body,
        MessageBody::Turns(vec![News::Sent(sent(chain(3, MOST_KEYS)))])
    );
}

#[test]
fn other_versions_are_distinguished_from_garbage() {
    let mut message = write(&turns());
    message[0] = VERSION + 1;
    assert_eq!(read(&message), Err(WireError::Version(VERSION + 1)));
    assert_eq!(read(&[]), Err(WireError::Short));
    assert_eq!(read(&[VERSION, 9]), Err(WireError::Malformed));
}

#[test]
fn a_truncated_message_is_rejected_or_ends_between_two_turns() {
    let message = write(&turns());
    for end in 0..message.len() {
        if let Ok((_, MessageBody::Turns(some))) = read(&message[..end]) {
            assert_eq!(some, turns()[..some.len()]);
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_corrupted_message_is_read_or_rejected(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut message = write(&turns());
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        let _ = read(&message);
    }
}
