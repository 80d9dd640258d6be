use super::*;
use crate::cache::Future;
use simulator::trace::ClassId;

fn serve(stack: &mut TierStack, id: u64, length: u64) {
    stack.served(&Served {
        conversation: ConversationId(id),
        turn: 0,
        class: ClassId::DEFAULT,
        at: Millis(0.0),
        prompt: Tokens(length),
        length: Tokens(length),
        future: Future::Unknown,
    });
    assert_eq!(stack.check(), Ok(()));
}

fn tier(capacity: u64, ms_per_token: f64, unit_tokens: u32) -> Tier {
    Tier {
        capacity: Tokens(capacity),
        ms_per_token,
        unit_tokens,
    }
}

#[test]
fn free_tokens_sink_before_useful_ones_and_are_dropped_last() {
    let config = CacheConfig {
        xi_tokens: 40.0,
        ..CacheConfig::new(Tokens(150))
    };
    let mut stack = TierStack::new(config, &[tier(60, 0.01, 1), tier(40, 0.1, 16)]);
    serve(&mut stack, 1, 100);
    serve(&mut stack, 2, 100);
    // 50 too many: 40 free of the first are demoted, then 10 free of the second.
    assert_eq!(stack.per_tier(ConversationId(1)), [60, 40, 0].map(Tokens));
    assert_eq!(stack.per_tier(ConversationId(2)), [90, 10, 0].map(Tokens));
    assert_eq!(
        stack.load_time(ConversationId(1), Tokens(100)),
        Millis(40.0 * 0.01)
    );
    serve(&mut stack, 3, 100);
    // The host fills up, and demotes to disk in units of 16.
    assert_eq!(stack.used_per_tier()[0], Tokens(150));
    assert!(
        stack
            .per_tier(ConversationId(1))
            .iter()
            .all(|part| part.0 % 2 == 0)
    );
    assert_eq!(stack.used_per_tier()[2].0 % 16, 0);
}

#[test]
fn a_return_brings_everything_to_the_top() {
    let mut stack = TierStack::new(CacheConfig::new(Tokens(100)), &[tier(100, 0.01, 1)]);
    serve(&mut stack, 1, 80);
    serve(&mut stack, 2, 80);
    assert_eq!(stack.per_tier(ConversationId(1)), [20, 60].map(Tokens));
    serve(&mut stack, 1, 90);
    assert_eq!(stack.per_tier(ConversationId(1)), [90, 0].map(Tokens));
    assert_eq!(stack.per_tier(ConversationId(2)), [10, 70].map(Tokens));
}
