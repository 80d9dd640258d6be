use super::*;
use crate::fingerprint::ChainBuilder;

const W0: WorkerId = WorkerId(0);
const W1: WorkerId = WorkerId(1);

fn residency(capacity: u64) -> Residency {
    Residency::new(
        IndexLimits { max_bytes: 1 << 20 },
        &[Tokens(capacity), Tokens(capacity)],
    )
}

/// A prompt of `chunks` keys of 256 bytes; at one token per byte each weighs 256.
fn prompt(name: &str, chunks: usize) -> Chain {
    let mut builder = ChainBuilder::new(name, None);
    builder.begin_prompt();
    builder.push(&vec![b'x'; chunks * 256 - 2]);
    builder.end_message();
    builder.into_chain()
}

fn depth(residency: &Residency, worker: WorkerId, chain: &Chain) -> u32 {
    let mut reach = Reach::new();
    residency.lookup(chain.hashes(), &mut reach);
    reach.of(worker)
}

fn serve(residency: &mut Residency, worker: WorkerId, chain: &Chain, evict_first: u64) {
    let hold = residency.sent(worker, chain, 1.0).unwrap();
    let total = Tokens(chain.span(chain.len()));
    residency.settle(hold, None, 1.0, Tokens(evict_first), total);
}

#[test]
fn a_request_in_flight_counts_where_it_was_sent_and_nowhere_else() {
    let mut residency = residency(4096);
    let chain = prompt("a", 4);
    let hold = residency.sent(W0, &chain, 1.0).unwrap();
    assert_eq!(
        (depth(&residency, W0, &chain), depth(&residency, W1, &chain)),
        (4, 0)
    );
    assert_eq!(residency.tokens_on(W0), Tokens(1024));
    residency.settle(hold, None, 1.0, Tokens::ZERO, Tokens(1024));
    assert_eq!(depth(&residency, W0, &chain), 4);
}

#[test]
fn what_the_mirror_evicts_leaves_the_index() {
    let mut residency = residency(2048);
    let (a, b, c) = (prompt("a", 4), prompt("b", 4), prompt("c", 2));
    serve(&mut residency, W0, &a, 0);
    serve(&mut residency, W0, &b, 0);
    serve(&mut residency, W0, &c, 0);
    // c took the room of the end of a, the oldest.
    assert_eq!([&a, &b, &c].map(|chain| depth(&residency, W0, chain)), [2, 4, 2]);
}

#[test]
fn an_evict_first_tail_goes_before_older_conversations() {
    let mut residency = residency(2048);
    let (a, b, c) = (prompt("a", 4), prompt("b", 4), prompt("c", 2));
    serve(&mut residency, W0, &a, 0);
    serve(&mut residency, W0, &b, 512);
    serve(&mut residency, W0, &c, 0);
    assert_eq!([&a, &b, &c].map(|chain| depth(&residency, W0, chain)), [4, 2, 2]);
}

#[test]
fn the_reply_is_found_by_the_next_turn() {
    let mut residency = residency(4096);
    let mut builder = ChainBuilder::new("m", None);
    builder.begin_message("user");
    builder.push(&[b'q'; 300]);
    builder.end_message();
    let mut reply = builder.reply();
    reply.push(&[b'r'; 600]);
    reply.end_message();
    let before = builder.bytes();
    let chain = builder.into_chain();
    let hold = residency.sent(W0, &chain, 1.0).unwrap();
    let total = Tokens(reply.bytes());
    residency.settle(
        hold,
        Some((reply.parent(), reply.chain(), before)),
        1.0,
        Tokens::ZERO,
        total,
    );

    let mut next = chain.clone();
    next.extend_from(reply.chain());
    assert_eq!(depth(&residency, W0, &next) as usize, next.len());
    assert_eq!(residency.tokens_on(W0), total);
}

#[test]
fn a_request_that_never_arrived_leaves_no_trace_but_keeps_what_was_there() {
    let mut residency = residency(4096);
    let long = prompt("a", 6);
    let short = {
        let hold = residency.sent(W0, &long, 1.0).unwrap();
        residency.retract(hold);
        assert_eq!(depth(&residency, W0, &long), 0);
        prompt("b", 2)
    };
    serve(&mut residency, W0, &short, 0);
    let hold = residency.sent(W0, &short, 1.0).unwrap();
    residency.retract(hold);
    assert_eq!(depth(&residency, W0, &short), 2);
}

#[test]
fn a_worker_that_keeps_finding_nothing_is_forgotten() {
    let mut residency = residency(4096);
    let chain = prompt("a", 4);
    serve(&mut residency, W0, &chain, 0);
    assert!(!residency.reported(W0, Tokens(1024), Tokens(0)));
    assert!(!residency.reported(W0, Tokens(1024), Tokens(0)));
    assert!(
        !residency.reported(W0, Tokens(1024), Tokens(512)),
        "a hit clears the suspicion"
    );
    assert!(!residency.reported(W0, Tokens(1024), Tokens(0)));
    assert!(
        !residency.reported(W0, Tokens(10), Tokens(0)),
        "too little to contradict anything"
    );
    assert!(!residency.reported(W0, Tokens(1024), Tokens(0)));
    assert!(residency.reported(W0, Tokens(1024), Tokens(0)));
    assert_eq!(depth(&residency, W0, &chain), 0);
    assert_eq!(residency.tokens_on(W0), Tokens::ZERO);
}

#[test]
fn an_unknown_worker_is_no_panic() {
    let mut residency = residency(4096);
    assert!(residency.sent(WorkerId(9), &prompt("a", 1), 1.0).is_none());
    residency.forget(WorkerId(9));
    assert!(!residency.reported(WorkerId(9), Tokens(1000), Tokens(0)));
}

mod restored {
    use proptest::prelude::*;

    use super::*;
    use crate::residency::chains;

    proptest! {
        #[test]
        fn what_was_written_down_answers_the_same_and_is_evicted_in_the_same_order(
            turns in prop::collection::vec((0..5_u8, 1..6_usize, 0..2_u32, any::<bool>()), 1..40),
        ) {
            let mut before = residency(4096);
            let mut prompts = Vec::new();
            for (name, chunks, worker, trimmed) in turns {
                let chain = prompt(&format!("{name}"), chunks);
                serve(&mut before, WorkerId(worker), &chain, if trimmed { 300 } else { 0 });
                prompts.push(chain);
            }
            let mut after = residency(4096);
            for worker in [W0, W1] {
                let entries = before.entries(worker);
                for chain in chains(&entries) {
                    after.restore(worker, &chain);
                }
                for chain in &prompts {
                    prop_assert_eq!(depth(&before, worker, chain), depth(&after, worker, chain));
                }
                prop_assert_eq!(before.tokens_on(worker), after.tokens_on(worker));
                prop_assert_eq!(entries, after.entries(worker));
            }
        }
    }
}
