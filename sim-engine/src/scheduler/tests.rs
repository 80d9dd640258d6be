use std::collections::BTreeMap;

use policy::cost::PrefillCost;
use proptest::prelude::*;

use super::*;
use crate::hints::{Hint, HintKind, HintOutcome, Objective};

const BLOCK: u32 = 16;

fn config() -> EngineConfig {
    EngineConfig {
        block_size: BLOCK,
        capacity_blocks: 1000,
        prefill: PrefillCost {
            alpha_ms_per_token: 0.5,
            beta_ms: 10.0,
            gamma_ms_per_token2: 0.001,
            floor_ms: 0.0,
        },
        tpot_ms: 8.0,
        tpot_batch_ms: 1.0,
        ..EngineConfig::default()
    }
}

fn tokens(conversation: u32, range: std::ops::Range<u32>) -> Vec<u32> {
    range.map(|at| conversation * 100_000 + at).collect()
}

fn submission(tokens: &[u32], output_tokens: u32) -> Submission {
    let mut hasher = BlockHasher::new("m", None, BLOCK);
    let chain = tokens.iter().filter_map(|&token| hasher.push(token)).collect();
    let seed = hasher.digest();
    Submission {
        prompt_tokens: tokens.len() as u64,
        chain,
        hasher,
        tokens: None,
        seed,
        script: None,
        output_tokens,
        runs_out: true,
        priority: 0,
        terms: CacheTerms::default(),
    }
}

fn of_session(mut request: Submission, session: &str) -> Submission {
    request.terms.session = Some(Arc::from(session));
    request
}

fn reply(request: &Submission) -> Vec<u32> {
    (0..request.output_tokens)
        .map(|at| piece_token(text::word(request.seed, at, false)))
        .collect()
}

struct Fixture {
    scheduler: Scheduler,
    seen: BTreeMap<RequestId, Progress>,
}

impl Fixture {
    fn new(config: &EngineConfig) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            seen: BTreeMap::new(),
        }
    }

    fn submit(&mut self, at: f64, request: Submission) -> RequestId {
        let id = self.scheduler.submit(Millis(at), request).unwrap();
        self.collect();
        id
    }

    fn advance(&mut self, to: f64) {
        self.scheduler.advance(Millis(to));
        self.collect();
    }

    fn collect(&mut self) {
        let seen = &mut self.seen;
        self.scheduler.drain_progress(|id, progress| {
            seen.insert(id, progress);
        });
    }

    /// Runs all events; returns the time of the last one.
    fn finish(&mut self) -> f64 {
        while let Some(next) = self.scheduler.next_event() {
            self.advance(next.0);
        }
        self.scheduler.now.0
    }

    fn turn(&mut self, request: Submission) -> Progress {
        let id = self.submit(self.scheduler.now.0, request);
        self.finish();
        self.seen[&id]
    }

    fn set_objective(&mut self, objective: Objective, is_taken: bool) {
        let now = self.scheduler.now;
        assert_eq!(self.scheduler.memory.set_objective(now, objective, 1.0), is_taken);
    }

    fn hint(
        &mut self,
        kind: HintKind,
        session: &str,
        keep: u64,
        epoch: u64,
        ttl_ms: Option<f64>,
    ) -> HintOutcome {
        let hint = Hint {
            kind,
            session_id: session.to_owned(),
            keep_tokens: Some(keep),
            epoch,
            ttl_ms,
        };
        self.scheduler.memory.hint(self.scheduler.now, &hint, 1.0)
    }

    fn evict_first(&self) -> u64 {
        self.scheduler.memory.cache().evict_first().0
    }
}

#[track_caller]
fn close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6, "{left} is not {right}");
}

#[test]
fn ttft_is_queue_plus_beta_alpha_and_gamma() {
    let mut f = Fixture::new(&config());
    let first = f.submit(0.0, submission(&tokens(1, 0..100), 1));
    let second = f.submit(5.0, submission(&tokens(2, 0..40), 1));
    f.advance(1_000.0);
    let cold = |u: f64| 10.0 + 0.5 * u + 0.001 * u * u / 2.0;
    close(f.seen[&first].ttft.0, cold(100.0));
    close(f.seen[&second].queue.0, cold(100.0) - 5.0);
    close(f.seen[&second].ttft.0, cold(100.0) - 5.0 + cold(40.0));

    // 96 of the 100 tokens fill blocks; the rest of the longer prompt is computed after them.
    let warm = f.turn(submission(&tokens(1, 0..150), 1));
    assert_eq!(warm.cached_tokens, 96);
    close(warm.ttft.0, 10.0 + 0.5 * 54.0 + 0.001 * 54.0 * (96.0 + 27.0));
}

#[test]
fn the_last_prompt_token_is_always_computed() {
    let mut f = Fixture::new(&config());
    f.turn(submission(&tokens(1, 0..64), 1));
    let again = f.turn(submission(&tokens(1, 0..64), 1));
    assert_eq!(again.cached_tokens, 48, "the last block is computed again");
    assert_eq!(f.scheduler.memory.cache().used(), Tokens(64), "and stored once");
}

#[test]
fn the_next_turn_hits_the_cache_through_the_reply() {
    let mut f = Fixture::new(&config());
    let prompt = tokens(1, 0..60);
    let request = submission(&prompt, 70);
    let history = [prompt, reply(&request), tokens(9, 0..20)].concat();
    f.turn(request);
    // The last of 130 tokens was generated but its keys and values were never computed.
    assert_eq!(f.turn(submission(&history, 1)).cached_tokens, 128);
}

#[test]
fn running_sequences_share_decode_steps_and_joiners_wait_for_the_next() {
    let mut f = Fixture::new(&config());
    let one = f.submit(0.0, submission(&tokens(1, 0..20), 4));
    let start = 10.0 + 0.5 * 20.0 + 0.001 * 200.0;
    f.advance(start);
    assert_eq!(f.seen[&one].generated, 1);
    // Steps of a batch of one take 9 ms. The second sequence joins during the third.
    f.advance(start + 17.9);
    assert_eq!(f.seen[&one].generated, 2);
    let two = f.submit(start + 17.9 - 20.2 + 4.0, submission(&tokens(2, 0..20), 3));
    close(f.finish(), start + 27.0_f64.max(17.9 + 20.2) + 2.0 * 9.0);
    assert_eq!((f.seen[&one].generated, f.seen[&two].generated), (4, 3));
}

#[test]
fn a_batch_of_two_takes_longer_steps() {
    let mut f = Fixture::new(&EngineConfig {
        prefill: PrefillCost::linear(0.0, 0.0),
        ..config()
    });
    f.submit(0.0, submission(&tokens(1, 0..20), 2));
    f.advance(0.0);
    f.submit(0.0, submission(&tokens(2, 0..20), 2));
    // The first step began alone (9 ms), the second sequence takes the next (9 ms).
    close(f.finish(), 18.0);
    let mut f = Fixture::new(&EngineConfig {
        prefill: PrefillCost::linear(0.0, 1.0),
        ..config()
    });
    f.submit(0.0, submission(&tokens(1, 0..20), 20));
    f.submit(0.0, submission(&tokens(2, 0..20), 20));
    // Alone from 1 to 10; together for 18 steps of 10; the second one's last token alone.
    close(f.finish(), 10.0 + 18.0 * 10.0 + 9.0);
}

#[test]
fn an_abort_frees_the_requests_memory_in_every_phase() {
    let mut f = Fixture::new(&config());
    let decoding = f.submit(0.0, submission(&tokens(1, 0..40), 1000));
    f.advance(31.0);
    let prefilling = f.submit(31.0, submission(&tokens(2, 0..400), 5));
    let queued = f.submit(31.0, submission(&tokens(3, 0..40), 1));
    let behind = f.submit(31.0, submission(&tokens(4, 0..40), 1));
    let now = Millis(50.0);
    assert_eq!(f.scheduler.abort(now, queued), Some(Phase::Queued));
    assert_eq!(f.scheduler.abort(now, prefilling), Some(Phase::Prefill));
    assert_eq!(f.scheduler.abort(now, decoding), Some(Phase::Decode));
    assert_eq!(f.scheduler.abort(now, decoding), None, "once");
    assert_eq!(
        f.scheduler.counters.aborted,
        Aborts {
            queued: 1,
            prefill: 1,
            decode: 1
        }
    );
    f.finish();
    close(f.seen[&behind].queue.0, 19.0);
    assert_eq!(f.scheduler.memory.cache().pinned(), Tokens::ZERO);
    assert_eq!(
        f.turn(submission(&tokens(2, 0..400), 1)).cached_tokens,
        0,
        "what was not computed is not cached"
    );
    assert_eq!(f.turn(submission(&tokens(1, 0..40), 1)).cached_tokens, 32);
}

#[test]
fn a_full_queue_rejects_and_priorities_reorder() {
    let mut f = Fixture::new(&EngineConfig {
        max_queued: 2,
        order: Order::Priority,
        ..config()
    });
    f.submit(0.0, submission(&tokens(1, 0..20), 1));
    let late = f.submit(
        0.0,
        Submission {
            priority: 5,
            ..submission(&tokens(2, 0..20), 1)
        },
    );
    let urgent = f.submit(
        1.0,
        Submission {
            priority: -1,
            ..submission(&tokens(3, 0..20), 1)
        },
    );
    assert_eq!(
        f.scheduler.submit(Millis(1.0), submission(&tokens(4, 0..20), 1)),
        Err(Overloaded)
    );
    f.finish();
    assert!(f.seen[&urgent].queue < f.seen[&late].queue);
}

#[test]
fn a_prompt_waits_while_running_sequences_hold_the_memory() {
    let mut f = Fixture::new(&EngineConfig {
        capacity_blocks: 10,
        ..config()
    });
    f.submit(0.0, submission(&tokens(1, 0..128), 3));
    let big = f.submit(0.0, submission(&tokens(2, 0..64), 1));
    f.advance(90.0);
    assert_eq!((f.scheduler.waiting(), f.scheduler.running()), (1, 1));
    f.finish();
    let first = 10.0 + 64.0 + 0.001 * 128.0 * 64.0;
    close(f.seen[&big].queue.0, first + 2.0 * 9.0);
}

#[test]
fn a_hint_changes_whose_cache_survives_as_in_the_real_engine() {
    // Measured on vLLM with such a plugin: 99 blocks of 32 tokens; A and B of 1,024 tokens, then C of 1,600.
    let config = EngineConfig {
        block_size: 32,
        capacity_blocks: 99,
        ..config()
    };
    let turn = |f: &mut Fixture, name: &str, conversation: u32, length: u32| {
        let mut hasher = BlockHasher::new("m", None, 32);
        let tokens = tokens(conversation, 0..length);
        let chain = tokens.iter().filter_map(|&token| hasher.push(token)).collect();
        let request = Submission {
            hasher,
            chain,
            ..submission(&tokens, 1)
        };
        f.turn(of_session(request, name)).cached_tokens
    };
    for (hinted, survives) in [(false, 544), (true, 1024)] {
        let mut f = Fixture::new(&config);
        turn(&mut f, "A", 1, 1024);
        turn(&mut f, "B", 2, 1024);
        if hinted {
            assert_eq!(f.hint(HintKind::Trim, "B", 512, 1, None), HintOutcome::Applied);
        }
        turn(&mut f, "C", 3, 1600);
        assert_eq!(turn(&mut f, "A", 1, 1056), survives, "hinted: {hinted}");
    }
}

#[test]
fn hints_are_idempotent_and_old_ones_are_ignored() {
    let mut f = Fixture::new(&config());
    assert_eq!(f.hint(HintKind::Trim, "s", 16, 1, None), HintOutcome::Unknown);
    f.turn(of_session(submission(&tokens(1, 0..64), 1), "s"));
    assert_eq!(f.hint(HintKind::Trim, "s", 20, 3, None), HintOutcome::Applied);
    assert_eq!(f.evict_first(), 32, "two of four blocks begin before token 20");
    assert_eq!(f.hint(HintKind::Trim, "s", 20, 3, None), HintOutcome::Applied);
    assert_eq!(f.hint(HintKind::Ended, "s", 0, 2, None), HintOutcome::Stale);
    assert_eq!(
        f.hint(HintKind::Ended, "s", 0, 4, Some(0.0)),
        HintOutcome::Expired
    );
    assert_eq!(f.evict_first(), 32);
    assert_eq!(f.hint(HintKind::Ended, "s", 0, 4, None), HintOutcome::Applied);
    assert_eq!(f.evict_first(), 64);
    assert_eq!(f.hint(HintKind::Protect, "s", 32, 5, None), HintOutcome::Applied);
    assert_eq!(f.evict_first(), 32, "the protected half is in use again");
}

#[test]
fn a_hint_waits_for_the_running_turn_unless_its_time_runs_out() {
    for (ttl, evict_first) in [(None, 48), (Some(1e6), 48), (Some(1.0), 0)] {
        let mut f = Fixture::new(&config());
        f.submit(0.0, of_session(submission(&tokens(1, 0..64), 3), "s"));
        assert_eq!(f.hint(HintKind::Trim, "s", 16, 1, ttl), HintOutcome::Pending);
        f.finish();
        assert_eq!(f.evict_first(), evict_first, "{ttl:?}");
        assert_eq!(
            f.scheduler.memory.counters.hints_expired,
            u64::from(evict_first == 0)
        );
    }
}

#[test]
fn a_release_marks_blocks_by_the_header_or_else_the_objective() {
    let mut f = Fixture::new(&config());
    let mut request = submission(&tokens(1, 0..64), 16);
    request.terms.evict_first_tail = Some(40);
    f.turn(request);
    // L = 80, so 40 are kept: three of the four blocks (the fifth lacks the last generated token).
    assert_eq!(f.evict_first(), 16);
    f.set_objective(Objective::new(60.0, 10.0, 2), true);
    f.set_objective(Objective::new(60.0, 10.0, 1), false);
    f.turn(submission(&tokens(2, 0..64), 16));
    // 80 + 10 − 60 = 30: two blocks are kept.
    assert_eq!(f.evict_first(), 16 + 32);
}

#[test]
fn the_objective_in_force_judges_finished_turns_and_none_once_it_has_expired() {
    let mut f = Fixture::new(&config());
    for (session, tail) in [("a", None), ("b", Some(40)), ("c", None)] {
        let mut request = submission(&tokens(session.as_bytes()[0].into(), 0..64), 16);
        request.terms.session = Some(session.into());
        request.terms.evict_first_tail = tail;
        f.turn(request);
    }
    f.hint(HintKind::Trim, "c", 48, 1, None);
    // By the request of b and by the hint: a block each.
    assert_eq!(f.evict_first(), 32);
    let short = Objective {
        ttl_ms: Some(1_000.0),
        ..Objective::new(60.0, 10.0, 1)
    };
    f.set_objective(short, true);
    // 80 + 10 − 60 = 30: of a and c two blocks are kept. The request of b has said so itself.
    assert_eq!(f.evict_first(), 32 + 16 + 32);
    f.set_objective(Objective::new(30.0, 10.0, 2), true);
    // 80 + 10 − 30 = 60: all four blocks of a are kept, and three of c by the hint.
    assert_eq!(f.evict_first(), 32);
    f.set_objective(
        Objective {
            epoch: 3,
            t_lru: false,
            ..short
        },
        true,
    );
    assert_eq!(f.evict_first(), 32, "ξ only informs");
    f.set_objective(Objective { epoch: 4, ..short }, true);
    assert_eq!(f.evict_first(), 32 + 16 + 32);
    f.advance(f.scheduler.now.0 + 1_000.0);
    assert_eq!(f.evict_first(), 32);
    f.set_objective(Objective { epoch: 3, ..short }, false);
}

#[test]
fn death_loses_every_request_and_the_cache() {
    let mut f = Fixture::new(&config());
    let lost = f.submit(0.0, submission(&tokens(1, 0..64), 10));
    f.scheduler.die(Millis(60.0));
    f.collect();
    assert!(f.seen[&lost].lost && f.seen[&lost].done);
    assert_eq!(f.turn(submission(&tokens(1, 0..64), 1)).cached_tokens, 0);
}

#[derive(Clone, Debug)]
struct Arrival {
    at: f64,
    conversation: u32,
    length: u32,
    output: u32,
    abort_after: Option<f64>,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (
        0.0..400.0,
        0..3u32,
        1..200u32,
        1..12u32,
        prop::option::weighted(0.2, 0.0..200.0),
    )
        .prop_map(|(at, conversation, length, output, abort_after)| Arrival {
            at,
            conversation,
            length,
            output,
            abort_after,
        });
    prop::collection::vec(arrival, 1..12).prop_map(|mut arrivals| {
        arrivals.sort_by(|a, b| a.at.total_cmp(&b.at));
        arrivals
    })
}

/// Runs arrivals and aborts, and also advances the engine every `tick` ms.
fn play(arrivals: &[Arrival], tick: f64) -> (BTreeMap<RequestId, Progress>, f64) {
    let mut f = Fixture::new(&EngineConfig {
        capacity_blocks: 20,
        ..config()
    });
    let mut acts: Vec<(f64, usize, bool)> = Vec::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        acts.push((arrival.at, index, true));
        acts.extend(
            arrival
                .abort_after
                .map(|after| (arrival.at + after, index, false)),
        );
    }
    acts.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.2.cmp(&a.2)));
    let mut ids = vec![0; arrivals.len()];
    for (at, index, arrives) in acts {
        while f.scheduler.now.0 + tick < at {
            f.advance(f.scheduler.now.0 + tick);
        }
        let arrival = &arrivals[index];
        if arrives {
            ids[index] = f.submit(
                at,
                submission(&tokens(arrival.conversation, 0..arrival.length), arrival.output),
            );
        } else {
            f.scheduler.abort(Millis(at), ids[index]);
            f.collect();
        }
    }
    let end = f.finish();
    assert_eq!(
        f.scheduler.memory.cache().pinned(),
        Tokens::ZERO,
        "everything was given back"
    );
    assert_eq!(f.scheduler.memory.cache().invariants(), Ok(()));
    assert_eq!(
        (
            f.scheduler.waiting(),
            f.scheduler.running(),
            f.scheduler.sequences.len()
        ),
        (0, 0, 0)
    );
    f.seen.retain(|_, progress| progress.done);
    (f.seen, end)
}

proptest! {
    /// The naive twin of "each event at its own time" advances in small ticks.
    #[test]
    fn the_polling_interval_changes_nothing(arrivals in arrivals(), tick in 0.3..50.0) {
        prop_assert_eq!(play(&arrivals, tick), play(&arrivals, f64::INFINITY));
    }
}
