use bytes::Bytes;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig, Fault, KvEventsConfig};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::client::{call, chat, quick, say, start, within};

async fn engine() -> Engine {
    let kv_events = Some(KvEventsConfig {
        topic: "kv@sim".to_owned(),
        ..KvEventsConfig::default()
    });
    start(EngineConfig {
        kv_events,
        capacity_blocks: 8,
        ..quick()
    })
    .await
}

async fn turn(engine: &Engine, session: &str, text: &str) {
    let body = say(text, json!({ "max_tokens": 1, "session_id": session }));
    chat(engine, &[], &body).await;
}

fn text(name: &str) -> String {
    (0..64).map(|at| format!("{name}{at} ")).collect()
}

/// (number, events) of a message: topic, number, payload are its last three frames.
fn decode(message: ZmqMessage) -> (u64, Vec<Value>) {
    let frames = message.into_vec();
    let [.., topic, number, payload] = frames.as_slice() else {
        panic!("{} frames", frames.len())
    };
    assert_eq!(&topic[..], b"kv@sim");
    let number = u64::from_be_bytes(number[..].try_into().unwrap());
    if number == u64::MAX {
        return (number, Vec::new());
    }
    let (at, events, rank): (f64, Vec<Value>, u32) = rmp_serde::from_slice(payload).unwrap();
    assert!(at > 1.0e9 && rank == 0);
    (number, events)
}

async fn replay(engine: &Engine, from: u64) -> Vec<(u64, Vec<Value>)> {
    let mut dealer = DealerSocket::new();
    dealer
        .connect(&engine.kv_source().unwrap().replay_endpoint)
        .await
        .unwrap();
    let mut ask = ZmqMessage::from(Bytes::new());
    ask.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
    dealer.send(ask).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let message = within(dealer.recv()).await.unwrap();
        assert_eq!(message.len(), 4);
        assert!(message.get(0).unwrap().is_empty());
        let batch = decode(message);
        if batch.0 == u64::MAX {
            return batches;
        }
        batches.push(batch);
    }
}

#[tokio::test]
async fn stored_and_removed_blocks_are_told_as_vllm_tells_them() {
    let engine = engine().await;
    let (a, b) = (text("a"), text("b"));
    let (_, asked) = call(&engine, "POST", "/tokenize", &[], &say(&a, json!({}))).await;
    turn(&engine, "sess-A", &a).await;
    turn(&engine, "sess-B", &b).await;
    engine.set_fault(Fault {
        clear_cache: true,
        ..Fault::default()
    });
    let batches = replay(&engine, 0).await;
    assert!(
        batches.iter().enumerate().all(|(at, batch)| batch.0 == at as u64),
        "numbered from 0"
    );
    let events: Vec<Value> = batches.into_iter().flat_map(|batch| batch.1).collect();
    let stored: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "BlockStored")
        .collect();
    let first = stored[0];
    let hashes = first["block_hashes"].as_array().unwrap();
    assert_eq!(hashes.len(), 4, "68 tokens fill four blocks");
    assert_eq!(first["parent_block_hash"], Value::Null);
    assert_eq!(
        first["token_ids"].as_array().unwrap()[..],
        asked["tokens"].as_array().unwrap()[..64]
    );
    assert_eq!(
        (
            &first["block_size"],
            &first["medium"],
            &first["session_id"],
            &first["group_idx"]
        ),
        (&json!(16), &json!("GPU"), &json!("sess-A"), &json!(0))
    );
    assert_eq!(stored[1]["session_id"], "sess-B");
    assert_eq!(events.last(), Some(&json!({ "type": "AllBlocksCleared" })));
    assert_eq!(events.len(), 3, "both fit, so nothing was removed");
}

#[tokio::test]
async fn a_full_cache_tells_each_block_that_it_removes() {
    let engine = engine().await;
    for name in ["a", "b", "c"] {
        turn(&engine, name, &text(name)).await;
    }
    let events: Vec<Value> = replay(&engine, 0)
        .await
        .into_iter()
        .flat_map(|batch| batch.1)
        .collect();
    let removed: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "BlockRemoved")
        .map(|event| &event["block_hashes"])
        .collect();
    let mut first: Vec<Value> = events[0]["block_hashes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hash| json!([hash]))
        .collect();
    first.reverse();
    assert_eq!(
        removed,
        first.iter().collect::<Vec<_>>(),
        "the oldest conversation, from its end"
    );
}

#[tokio::test]
async fn a_late_subscriber_sees_the_gap_and_repairs_it() {
    let engine = engine().await;
    turn(&engine, "missed", &text("missed")).await;
    let mut subscriber = SubSocket::new();
    subscriber
        .connect(&engine.kv_source().unwrap().endpoint)
        .await
        .unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    // A subscription takes effect when the publisher has read it: talk until something comes through.
    let talk = async {
        for round in 0.. {
            turn(&engine, "heard", &text(&format!("{round}x"))).await;
        }
    };
    let message = tokio::select! {
        message = within(subscriber.recv()) => message.unwrap(),
        () = talk => unreachable!(),
    };
    assert_eq!(message.len(), 3);
    let (number, heard) = decode(message);
    assert!(number >= 1, "the first batch was missed");
    let all = replay(&engine, 0).await;
    assert_eq!(all[0].1[0]["session_id"], "missed");
    assert_eq!(all[number as usize], (number, heard));
    assert_eq!(replay(&engine, number).await[0].0, number);
}

#[tokio::test]
async fn the_sources_say_where_to_subscribe() {
    let engine = engine().await;
    let (_, answer) = call(&engine, "GET", "/kv_event_sources", &[], &Value::Null).await;
    let source = engine.kv_source().unwrap();
    assert_eq!(answer["0"]["endpoint"], source.endpoint);
    assert_eq!(answer["0"]["replay_endpoint"], source.replay_endpoint);
    assert_eq!(answer["0"]["topic"], "kv@sim");
}
