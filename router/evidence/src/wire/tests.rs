use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;

fn events(payload: &[u8]) -> Result<(Vec<Event>, Option<u32>), BatchError> {
    let mut events = Vec::new();
    let batch = decode(payload, |event| events.push(event))?;
    Ok((events, batch.rank))
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
        ..Stored::default()
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
            ..Stored::default()
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
        group: 0,
    };
    assert_eq!(events, [removed(u64::MAX), removed(9)]);
}

#[test]
fn a_long_hash_is_its_last_eight_bytes() {
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
fn a_group_of_layers_is_named_and_so_is_whether_it_attends_to_the_whole_prompt() {
    let kinds = [
        (json!(null), false),
        (json!("full_attention"), false),
        (json!("mla_attention"), false),
        (json!("sliding_window"), true),
        (json!("sliding_window_mla"), true),
        (json!("chunked_local_attention"), true),
        (json!("mamba"), true),
        (json!("not known yet"), false),
    ];
    for (kind, expected) in kinds {
        let event = json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 16,
            "group_idx": 2, "kv_cache_spec_kind": kind});
        let (read, _) = events(&pack(&json!([0.0, [event]]))).unwrap();
        let Event::Stored(stored) = &read[0] else {
            unreachable!()
        };
        assert_eq!((stored.group, stored.partial), (2, expected), "{kind}");
    }
    let event = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 1});
    let (read, _) = events(&pack(&json!([0.0, [event]]))).unwrap();
    assert!(matches!(read[0], Event::Removed { group: 1, .. }), "{read:?}");
}

#[test]
fn every_tier_has_its_name_and_blocks_without_tokens_are_copies() {
    let tiers = [
        (json!("GPU"), Medium::Gpu),
        (json!(null), Medium::Gpu),
        (json!("CPU"), Medium::Host),
        (json!("CPU_PINNED"), Medium::Host),
        (json!("DISK"), Medium::Disk),
        (json!("EXTERNAL"), Medium::External),
        (json!("not known yet"), Medium::External),
    ];
    for (name, expected) in tiers {
        let read = |tokens: Value| {
            let event = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
                "token_ids": tokens, "block_size": 1, "medium": name});
            events(&pack(&json!([0.0, [event]]))).unwrap().0.remove(0)
        };
        assert!(
            matches!(read(json!([7, 8])), Event::Stored(Stored { medium, .. }) if medium == expected),
            "{name}"
        );
        let copied = matches!(read(json!([])), Event::Copied { medium, .. } if medium == expected);
        assert_eq!(copied, expected != Medium::Gpu, "{name}");
    }
}

#[test]
fn copies_and_removals_have_their_group() {
    for (group, expected) in [(json!(null), 0), (json!(2), 2)] {
        let copied = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [],
            "block_size": 1, "medium": "CPU", "group_idx": group});
        let array = json!(["BlockStored", [1], null, [], 1, null, "CPU", null, null, group]);
        let removed =
            json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": group});
        let found = events(&pack(&json!([0.0, [copied, array, removed]]))).unwrap().0;
        let groups: Vec<u32> = found
            .iter()
            .filter_map(|event| match event {
                Event::Copied { group, .. } | Event::Removed { group, .. } => Some(*group),
                _ => None,
            })
            .collect();
        assert_eq!(groups, [expected; 3]);
    }
}

#[test]
fn a_batch_has_its_time_and_rank() {
    let read = |batch: Value| decode(&pack(&batch), |_| ()).unwrap();
    let batch = |at_s, rank| Batch { at_s, rank };
    assert_eq!(read(json!([1.5, [], 3])), batch(Some(1.5), Some(3)));
    assert_eq!(read(json!([7, [], null])), batch(Some(7.0), None));
    assert_eq!(read(json!(["soon", []])), batch(None, None));
}

#[test]
fn a_batch_with_too_many_hashes_is_rejected() {
    let removed = |count: u32| {
        let mut event = b"\x92\xacBlockRemoved\xdd".to_vec();
        event.extend(count.to_be_bytes());
        event.resize(event.len() + count as usize, 7);
        event
    };
    let batch = |counts: &[u32]| {
        let events: Vec<u8> = counts.iter().flat_map(|&count| removed(count)).collect();
        let mut hashes = 0;
        let payload = [&[0x92, 0xc0, 0x90 | counts.len() as u8], &events[..]].concat();
        decode(&payload, |event| hashes += event.hashes().len()).map(|_| hashes)
    };
    assert_eq!(batch(&[MAX_HASHES, MAX_HASHES]), Ok(MAX_BATCH_HASHES));
    let count = MAX_BATCH_HASHES as u32 + 1;
    let field = "block_hashes";
    assert_eq!(
        batch(&[MAX_HASHES, MAX_HASHES, 1]),
        Err(BatchError::TooMany { field, count })
    );
}

#[test]
fn unreadable_values_are_reported_by_field() {
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
    // A declared length without content allocates nothing.
    let huge = [0x92, 0xc0, 0x91, 0x92, 0xa1, b'x', 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(events(&huge), Err(BatchError::Short(11)));
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
            ..Stored::default()
        });
        prop_assert_eq!(events(&pack(&json!([0, [map], 0]))).unwrap().0, [expected]);
    }
}
