use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;

fn events(payload: &[u8]) -> Result<(Vec<Event>, Option<u32>), WireError> {
    let mut events = Vec::new();
    let rank = decode(payload, |event| events.push(event))?;
    Ok((events, rank))
}

fn pack(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

fn stored() -> Event {
    Event::Stored(Stored {
        hashes: vec![u64::MAX, 7],
        parent: Some(3),
        block_size: 32,
        medium: Medium::Gpu,
        session: Some(xxh3_64(b"sess-A")),
    })
}

#[test]
fn maps_are_read_with_their_type_in_any_place_and_unknown_fields_skipped() {
    let map = json!({
        "block_hashes": [u64::MAX, 7], "parent_block_hash": 3, "token_ids": [1, 2, 300], "block_size": 32,
        "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [["x", {"y": [1.5, true]}], null],
        "group_idx": 0, "kv_cache_spec_kind": "full_attention", "session_id": "sess-A", "type": "BlockStored",
        "to_come": {"a": [[[]]]},
    });
    let batch = json!([1.5, [map, {"type": "AllBlocksCleared"}, {"type": "Unheard", "block_hashes": "?"}, 5, "x"], 3]);
    let (events, rank) = events(&pack(&batch)).unwrap();
    assert_eq!(events, [stored(), Event::Cleared]);
    assert_eq!(rank, Some(3));
}

#[test]
fn arrays_of_every_length_are_read() {
    let full = json!([
        "BlockStored",
        [7],
        3,
        [1],
        16,
        null,
        "CPU_PINNED",
        null,
        null,
        0,
        "later"
    ]);
    for length in 5..=11 {
        let mut event = full.clone();
        event.as_array_mut().unwrap().truncate(length);
        let (events, rank) = events(&pack(&json!([
            0.0,
            [event, ["AllBlocksCleared"], ["Unheard", 1], []]
        ])))
        .unwrap();
        let medium = if length > 6 { Medium::Host } else { Medium::Gpu };
        let expected = Event::Stored(Stored {
            hashes: vec![7],
            parent: Some(3),
            block_size: 16,
            medium,
            session: None,
        });
        assert_eq!((events, rank), (vec![expected, Event::Cleared], None));
    }
    let (events, _) = events(&pack(&json!([
        0.0,
        [["BlockRemoved", [-1], "GPU"], ["BlockRemoved", [9]]],
        null
    ])))
    .unwrap();
    let removed = |hash| Event::Removed {
        hashes: vec![hash],
        medium: Medium::Gpu,
    };
    assert_eq!(events, [removed(u64::MAX), removed(9)]);
}

#[test]
fn a_long_hash_counts_by_its_last_eight_bytes() {
    let mut payload = vec![0x92, 0xc0, 0x91, 0x92, 0xac];
    payload.extend_from_slice(b"BlockRemoved");
    payload.extend_from_slice(&[0x91, 0xc4, 32]);
    payload.extend_from_slice(&[0xaa; 24]);
    payload.extend_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
    let (events, _) = events(&payload).unwrap();
    let Event::Removed { hashes, .. } = &events[0] else {
        unreachable!()
    };
    assert_eq!(hashes[..], [0x0102_0304_0506_0708]);
}

#[test]
fn another_groups_blocks_say_nothing() {
    let event = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 1});
    assert_eq!(events(&pack(&json!([0.0, [event]]))).unwrap().0, []);
}

#[test]
fn what_cannot_be_read_is_named() {
    let told = |value: Value| events(&pack(&value)).unwrap_err().to_string();
    assert_eq!(told(json!([1.0])), "an event without events");
    assert_eq!(
        told(json!([1.0, [{"type": "BlockStored"}], 0])),
        "an event without block_hashes"
    );
    assert_eq!(
        told(json!([1.0, [["BlockRemoved", ["x"]]], 0])),
        "block_hashes: found String at byte 26"
    );
    // A length that nothing follows sets nothing aside.
    let huge = [0x92, 0xc0, 0x91, 0x92, 0xa1, b'x', 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(events(&huge), Err(WireError::Short(11)));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = events(&bytes);
    }

    #[test]
    fn no_damage_to_a_batch_makes_it_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let map = json!({
            "type": "BlockStored", "block_hashes": [u64::MAX, 7], "parent_block_hash": 3, "token_ids": [1, 2, 300],
            "block_size": 32, "medium": "GPU", "extra_keys": [["x"], null], "session_id": "sess-A",
        });
        let mut bytes = pack(&json!([1.5, [map, ["BlockRemoved", [1, -2], "DISK", 0]], 0]));
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
            prop_assert!(events(&bytes).is_err());
        } else {
            bytes[at] = byte;
            let _ = events(&bytes);
        }
    }

    #[test]
    fn what_was_written_is_read(
        hashes in prop::collection::vec(any::<u64>(), 0..40), parent in any::<Option<u64>>(),
        block_size in 1..1_000_u32, session in prop::option::of("\\PC{0,40}"),
    ) {
        let map = json!({
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": [0],
            "block_size": block_size, "session_id": session,
        });
        let expected = Event::Stored(Stored {
            hashes, parent, block_size, medium: Medium::Gpu, session: session.map(|name| xxh3_64(name.as_bytes())),
        });
        prop_assert_eq!(events(&pack(&json!([0, [map], 0]))).unwrap().0, [expected]);
    }
}
