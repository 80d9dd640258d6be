//! Tests with two replicas whose messages are delivered, lost or delayed by the test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use config::Overrides;
use policy::fingerprint::{Chain, ChainBuilder};
use policy::index::Reach;
use policy::units::{Millis, Tokens};

use super::speak::{BusPublisher, Speaker};
use super::*;
use fleet::Worker;
use state::State;
use state::turn_reports::{ReportedTurn, SentTurn, TurnReports as _};

/// A replica and its pending reports.
struct Replica {
    state: Arc<State>,
    bus: Arc<Bus>,
    speaker: Speaker,
}

#[derive(Default)]
struct Sack(Vec<Vec<u8>>);

impl BusPublisher for Sack {
    async fn publish(&mut self, message: Vec<u8>) {
        self.0.push(message);
    }
}

fn state(name: &str) -> Arc<State> {
    let overrides = Overrides {
        workers: vec!["http://w:1".to_owned(), "http://w:2".to_owned()],
        ..Overrides::default()
    };
    let environment = BTreeMap::from([
        ("TAILROUTE_FLEET__NATS".to_owned(), "nats://nowhere".to_owned()),
        ("TAILROUTE_FLEET__REPLICA".to_owned(), name.to_owned()),
    ]);
    State::new(config::load_file(None, environment, overrides).unwrap()).unwrap()
}

impl Replica {
    fn new(name: &str) -> Self {
        let state = state(name);
        let settings = state.config.fleet.as_ref().unwrap();
        let bus = Arc::new(Bus::new(settings, state.routing.metrics.bus()));
        bus.set_up(Millis::ZERO, true);
        Self {
            speaker: Speaker::new(&bus),
            state,
            bus,
        }
    }

    fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }

    fn worker(&self, slot: usize) -> Arc<Worker> {
        Arc::clone(&self.state.routing.fleet.workers()[slot])
    }

    /// Sends a turn to the first worker.
    fn sends(&self, keys: &Chain) -> Box<dyn ReportedTurn> {
        let worker = self.worker(0);
        let turn = SentTurn {
            worker: &worker,
            prefill: Millis(50_000.0),
            session: Some(7),
            keys,
        };
        Arc::clone(self.bus()).sent(self.state.routing.clock, &turn, &|end| end)
    }

    /// Returns the replica's new messages.
    async fn says(&mut self) -> Vec<Vec<u8>> {
        let mut said = Vec::new();
        let bus = Arc::clone(self.bus());
        let mut queue = bus.waiting.try_lock().unwrap();
        while let Ok(one) = queue.try_recv() {
            said.push(one);
        }
        self.speaker.take_in(self.state.routing.clock.now(), &mut said);
        let mut sack = Sack::default();
        self.speaker.flush(&mut sack).await;
        sack.0
    }

    async fn calls_the_roll(&mut self) -> Vec<Vec<u8>> {
        let mut sack = Sack::default();
        let bus = Arc::clone(self.bus());
        let mut queue = bus.waiting.lock().await;
        self.speaker.call_roll(&self.state, &mut queue, &mut sack).await;
        sack.0
    }

    fn hears(&self, messages: &[Vec<u8>]) {
        for message in messages {
            self.bus().peers.hear(&self.state, self.bus(), message);
        }
    }

    /// Returns the number of other replicas' requests on the first worker, and how many of them wait.
    fn others(&self) -> (u32, usize) {
        self.worker(0).with_load(|load| (load.others, load.pending.len()))
    }

    /// Returns the number of keys that the first worker is believed to hold.
    fn holds(&self, keys: &Chain) -> usize {
        let id = self.worker(0).id;
        self.state.routing.knowledge.update(id, |residency| {
            let mut reach = Reach::new();
            residency.lookup(keys.hashes(), &mut reach);
            reach.of(id) as usize
        })
    }

    fn lost(&self) -> u64 {
        self.bus().peers.state(Millis::ZERO)[0].lost_messages
    }
}

fn prompt() -> (Chain, ChainBuilder) {
    let mut builder = ChainBuilder::new("m", None);
    builder.begin_message("user");
    builder.push(&[b'q'; 1000]);
    builder.end_message();
    let mut reply = builder.reply();
    reply.push(&[b'r'; 600]);
    reply.end_message();
    (builder.into_chain(), reply)
}

#[tokio::test]
async fn a_turn_of_another_replica_counts_until_its_end_and_then_its_blocks_are_cached() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, reply) = prompt();
    let told = one.sends(&keys);
    other.hears(&one.says().await);
    assert_eq!((other.others(), other.holds(&keys)), ((1, 1), keys.len()));
    let view = other
        .worker(0)
        .view(other.state.routing.clock.now(), true, Tokens::ZERO, 0.0);
    assert_eq!(view.in_flight, 1);
    assert!(
        view.wait.0 > 40_000.0,
        "it waits for the other's prefill: {:?}",
        view.wait
    );

    told.begun();
    other.hears(&one.says().await);
    assert_eq!(other.others(), (1, 0));
    assert_eq!(
        other.state.routing.knowledge.last_worker(7),
        Some(other.worker(0).id)
    );

    let said = policy::residency::Reply {
        parent: reply.parent(),
        chain: reply.chain(),
        before: keys.span(keys.len()),
        open: false,
    };
    told.answered(Some(&said), Tokens::ZERO, Tokens(1600), &|end| end);
    other.hears(&one.says().await);
    assert_eq!(other.others(), (0, 0));
    let whole = keys.with_reply(reply.parent(), reply.chain());
    assert_eq!(other.holds(&whole), whole.len());
    assert_eq!(other.bus().peers.count(), (1, 0));
}

#[tokio::test]
async fn a_turn_that_never_began_leaves_nothing() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, _) = prompt();
    let told = one.sends(&keys);
    other.hears(&one.says().await);
    drop(told);
    other.hears(&one.says().await);
    assert_eq!((other.others(), other.holds(&keys)), ((0, 0), 0));
}

#[tokio::test]
async fn lost_messages_are_repaired_by_the_roll_call() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, _) = prompt();
    other.hears(&one.calls_the_roll().await);
    let told = one.sends(&keys);
    let _lost = one.says().await;
    assert_eq!(other.others(), (0, 0));
    other.hears(&one.calls_the_roll().await);
    assert_eq!((other.others(), other.lost()), ((1, 1), 1));
    told.begun();
    let _lost = one.says().await;
    other.hears(&one.calls_the_roll().await);
    assert_eq!((other.others(), other.lost()), ((1, 0), 2));
    drop(told);
    let _lost = one.says().await;
    other.hears(&one.calls_the_roll().await);
    assert_eq!((other.others(), other.lost()), ((0, 0), 3));
}

#[tokio::test]
async fn reports_dropped_by_a_full_queue_are_repaired_by_the_roll_call() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let told: Vec<_> = (0..QUEUE).map(|_| one.sends(&Chain::new())).collect();
    // The queue is full, so this report is lost.
    told[0].begun();
    other.hears(&one.calls_the_roll().await);
    assert_eq!(other.others(), (QUEUE as u32, QUEUE - 1));
    let filling: Vec<_> = (0..QUEUE).map(|_| one.sends(&Chain::new())).collect();
    drop(told);
    other.hears(&one.calls_the_roll().await);
    assert_eq!(other.others().0, QUEUE as u32);
    drop(filling);
}

#[tokio::test]
async fn a_silent_replica_is_removed() {
    tokio::time::pause();
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, _) = prompt();
    let _under_way = one.sends(&keys);
    other.hears(&one.says().await);
    tokio::time::advance(fleet::clock::duration(peers::SILENT - Millis(1.0))).await;
    other.bus().peers.tidy(&other.state, &other.bus);
    assert_eq!(other.others(), (1, 1));
    tokio::time::advance(fleet::clock::duration(Millis(2.0))).await;
    other.bus().peers.tidy(&other.state, &other.bus);
    assert_eq!((other.others(), other.holds(&keys)), ((0, 0), 0));
    assert_eq!(other.bus().peers.count(), (0, 0));
    // The replica was only slow.
    other.hears(&one.calls_the_roll().await);
    assert_eq!(other.others(), (1, 1));
}

#[tokio::test]
async fn own_messages_garbage_and_unknown_workers_are_ignored() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, _) = prompt();
    let _told = one.sends(&keys);
    let said = one.says().await;
    one.hears(&said);
    assert_eq!((one.others(), one.bus().peers.count()), ((0, 0), (0, 0)));
    other.hears(&[b"rubbish".to_vec(), Vec::new(), vec![1; wire::LONGEST_BYTES + 1]]);
    assert_eq!(other.bus().peers.count(), (0, 0));
    let stranger = Worker::new(
        policy::ids::WorkerId(0),
        config::Worker {
            name: "stranger".to_owned(),
            ..one.worker(0).spec.clone()
        },
        &one.state.config,
        Millis::ZERO,
    );
    let turn = SentTurn {
        worker: &stranger,
        prefill: Millis(1.0),
        session: None,
        keys: &keys,
    };
    let _told = Arc::clone(one.bus()).sent(one.state.routing.clock, &turn, &|end| end);
    other.hears(&one.says().await);
    assert_eq!(other.bus().peers.count(), (1, 0));
}

#[tokio::test]
async fn hint_epochs_continue_after_those_of_other_replicas() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let now_us = UNIX_EPOCH.elapsed().expect("a clock after 1970").as_micros() as u64;
    let ahead = now_us + 60_000_000;
    // No clock is two hours wrong: such an epoch would make all later hints stale.
    for number in [ahead, now_us + 7_200_000_000, u64::MAX] {
        one.bus().hinted(&one.worker(0), number);
        other.hears(&one.says().await);
    }
    let hints = &other.worker(0).hints;
    hints.push("a".into(), fleet::hints::HintKind::Ended { keep: Tokens::ZERO });
    assert_eq!(hints.take()[0].epoch, ahead + 1);
}

#[tokio::test]
async fn blocks_trimmed_by_one_replica_are_freed_in_every_mirror() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let (keys, _) = prompt();
    let told = one.sends(&keys);
    told.begun();
    told.answered(None, Tokens::ZERO, Tokens(1000), &|end| end);
    other.hears(&one.says().await);
    let id = other.worker(0).id;
    let room = || {
        other
            .state
            .routing
            .knowledge
            .update(id, |residency| residency.room_on(id))
    };
    let before = room();
    let tip = *keys.hashes().last().unwrap();
    let unknown = policy::ids::PrefixHash(1);
    one.bus().trimmed(&one.worker(0), Tokens(256), &[unknown, tip]);
    other.hears(&one.says().await);
    assert_eq!(room().saturating_sub(before), Tokens(keys.span(keys.len()) - 256));
}

#[tokio::test]
async fn a_conversation_continued_by_another_replica_stays_active() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let id = other.worker(0).id;
    let silent = policy::tail::Answered {
        at: Millis::ZERO,
        worker: id,
        conversation: 7,
        class: policy::tail::Class::default(),
        length: Tokens(1000),
        objective: Millis(1000.0),
        what: Arc::default(),
    };
    other
        .state
        .routing
        .feedback
        .tail
        .lock()
        .answered(silent, Tokens(10));
    let count = || other.state.routing.feedback.tail.lock().silent_on(id);
    let told = one.sends(&prompt().0);
    other.hears(&one.says().await);
    assert_eq!(count(), 1, "it may be retried elsewhere");
    told.begun();
    other.hears(&one.says().await);
    assert_eq!(count(), 0);
}

#[tokio::test]
async fn a_long_roll_call_is_split_without_gaps() {
    let (mut one, other) = (Replica::new("one"), Replica::new("other"));
    let mut told = Vec::new();
    for _ in 0..9 {
        told.extend((0..QUEUE).map(|_| one.sends(&Chain::new())));
        let _lost = one.says().await;
    }
    let rolls = one.calls_the_roll().await;
    assert_eq!(rolls.len(), 3);
    other.hears(&rolls);
    assert_eq!(other.others().0 as usize, told.len());
    told.drain(4_000..5_000);
    let _lost = one.says().await;
    other.hears(&one.calls_the_roll().await);
    assert_eq!(other.others().0 as usize, told.len());
}

/// Returns a message that no correct replica sends.
fn lie(sender: u64, number: u64, sent: &[wire::Sent]) -> Vec<u8> {
    let mut writer = wire::MessageWriter::default();
    for sent in sent {
        writer.sent(sent, &wire::EncodedKeys::of(&sent.keys, 0, |end| end));
    }
    writer.take(wire::MessageHead {
        kind: wire::MessageKind::Turns,
        sender,
        number,
    })
}

fn sent(turn: u64, worker: u64, keys: &Chain) -> wire::Sent {
    wire::Sent {
        turn,
        worker,
        age: Millis(1e11),
        prefill: Millis(1e11),
        session: Some(turn),
        keys: keys.clone(),
    }
}

#[tokio::test]
async fn false_reports_are_bounded_and_removed_seconds_after_the_last_message() {
    tokio::time::pause();
    let honest = Replica::new("honest");
    let worker = honest.worker(0);
    let key = worker_key(worker.name());
    let absurd = Chain::of_ends(
        (1..=100)
            .map(|n| (policy::ids::PrefixHash(n), n * u64::from(u32::MAX)))
            .collect(),
    );
    for turn in 0..100 {
        honest.hears(&[lie(1, u64::MAX, &[sent(u64::MAX - turn, key, &absurd)])]);
    }
    let wait = |honest: &Replica| {
        honest
            .worker(0)
            .view(honest.state.routing.clock.now(), true, Tokens::ZERO, 0.0)
            .wait
            .0
    };
    assert_eq!(honest.others(), (100, 100));
    assert!(wait(&honest) <= 100.0 * 600_000.0, "{}", wait(&honest));
    tokio::time::advance(fleet::clock::duration(peers::SILENT + Millis(1.0))).await;
    honest.bus().peers.tidy(&honest.state, &honest.bus);
    assert_eq!((honest.others(), honest.bus().peers.count()), ((0, 0), (0, 0)));
    assert_eq!(wait(&honest), 0.0);
    // The utilisation decays within minutes, whatever was reported.
    tokio::time::advance(std::time::Duration::from_secs(600)).await;
    let rho = honest
        .worker(0)
        .with_load(|load| load.utilisation.at(honest.state.routing.clock.now()));
    assert!(rho < 1.0, "{rho}");
}

#[tokio::test]
async fn replicas_and_turns_beyond_the_bounds_take_no_memory() {
    let honest = Replica::new("honest");
    let key = worker_key(honest.worker(0).name());
    let long = Chain::of_ends((1..=4_096).map(|n| (policy::ids::PrefixHash(n), n)).collect());
    let room = peers::MOST_BYTES / (peers::TURN_BYTES + 4 * 4_096);
    for sender in 0..70 {
        for turn in 0..64 {
            honest.hears(&[lie(1 + sender, turn, &[sent(turn, key, &long)])]);
        }
    }
    let (replicas, turns) = honest.bus().peers.count();
    assert!(
        replicas <= 64 && turns <= room,
        "{replicas} replicas, {turns} turns of {room}"
    );
}
