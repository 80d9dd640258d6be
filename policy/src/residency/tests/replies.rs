use super::*;

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
    let hold = residency.sent(W0, &chain, |end| end).unwrap();
    let total = Tokens(reply.bytes());
    residency.settle(
        hold,
        Some(Reply {
            parent: reply.parent(),
            chain: reply.chain(),
            before,
            open: false,
        }),
        |end| end,
        Tokens::ZERO,
        total,
    );

    let mut next = chain.clone();
    next.extend_from(reply.chain());
    assert_eq!(depth(&residency, W0, &next) as usize, next.len());
    assert_eq!(residency.tokens_on(W0), total);
}

/// Returns a plain prompt, and the builder for its response.
fn plain(text: &[u8]) -> (Chain, ChainBuilder) {
    let mut builder = ChainBuilder::new("m", None);
    builder.begin_prompt();
    builder.push(text);
    let reply = builder.reply();
    builder.end_message();
    (builder.into_chain(), reply)
}

#[test]
fn a_growing_plain_prompt_is_held_whole_at_every_turn_and_nothing_of_it_twice() {
    let mut residency = residency(1 << 16);
    let mut text = vec![b'q'; 400];
    let mut held = 0;
    for turn in 0..6_u8 {
        let (chain, mut reply) = plain(&text);
        let full = chain.keys_before_reply(reply.parent());
        assert_eq!(full, chain.len() - 1);
        assert_eq!(depth(&residency, W0, &chain) as usize, held, "turn {turn}");
        let said = vec![b'a' + turn; 300];
        reply.push(&said);
        reply.end_message();
        let hold = residency.sent(W0, &chain, |end| end).unwrap();
        let total = Tokens(reply.bytes());
        let follows = Reply {
            parent: reply.parent(),
            chain: reply.chain(),
            before: chain.span(full),
            open: true,
        };
        residency.settle(hold, Some(follows), |end| end, Tokens::ZERO, total);
        let all = chain.with_reply(reply.parent(), reply.chain());
        assert_eq!(depth(&residency, W0, &all) as usize, all.len());
        assert_eq!(residency.tokens_on(W0), total, "the open ends have left");
        held = all.len() - 1;
        text.extend(said);
        text.extend([b'A' + turn; 130]);
    }
}

/// Serves the text and returns the response's chain.
fn answer(residency: &mut Residency, text: &[u8], said: &[u8]) -> Chain {
    let (chain, mut reply) = plain(text);
    reply.push(said);
    reply.end_message();
    let hold = residency.sent(W0, &chain, |end| end).unwrap();
    let follows = Reply {
        parent: reply.parent(),
        chain: reply.chain(),
        before: chain.span(chain.keys_before_reply(reply.parent())),
        open: reply.goes_on() && !reply.bytes().is_multiple_of(256),
    };
    let total = Tokens(reply.bytes());
    residency.settle(hold, Some(follows), |end| end, Tokens::ZERO, total);
    reply.into_chain()
}

#[test]
fn a_plain_prompt_that_is_asked_again_is_held_whole_as_long_as_its_reply_begins_there() {
    for (length, said) in [(100, 40), (500, 40), (500, 700), (510, 40)] {
        let mut residency = residency(4096);
        let text = vec![b'q'; length];
        let (chain, _) = plain(&text);
        let held = |residency: &Residency| (depth(residency, W0, &chain) as usize, residency.tokens_on(W0).0);
        for _ in 0..3 {
            answer(&mut residency, &text, &vec![b'r'; said]);
            let expected = (chain.len(), (length + said + 2) as u64);
            assert_eq!(
                held(&residency),
                expected,
                "{length} bytes, nothing of them twice"
            );
        }
        let hold = residency.sent(W0, &chain, |end| end).unwrap();
        residency.retract(hold);
        assert_eq!(
            residency.tokens_on(W0),
            Tokens((length + said + 2) as u64),
            "{length}"
        );
        serve(&mut residency, W0, &prompt("other", 16), 0);
        assert_eq!(held(&residency), (0, 4096));
    }
}

#[test]
fn a_plain_prompt_that_fills_its_last_chunk_is_not_counted_twice_by_the_next_turn() {
    let mut residency = residency(1 << 16);
    let mut text = vec![b'q'; 510];
    answer(&mut residency, &text, &[b'r'; 300]);
    text.extend([b'r'; 300]);
    text.extend([b's'; 400]);
    let (next, _) = plain(&text);
    serve(&mut residency, W0, &next, 0);
    assert_eq!(residency.tokens_on(W0), Tokens(next.span(next.len())));
}

#[test]
fn two_turns_of_one_plain_prompt_at_once_end_where_each_of_them_ends() {
    let mut residency = residency(1 << 16);
    let (chain, reply) = plain(&[b'q'; 400]);
    let holds: Vec<Reservation> = (0..2)
        .map(|_| residency.sent(W0, &chain, |end| end).unwrap())
        .collect();
    let full = chain.keys_before_reply(reply.parent());
    for (said, hold) in [b'a', b'b'].into_iter().zip(holds) {
        let mut reply = reply.clone();
        reply.push(&[said; 300]);
        reply.end_message();
        let follows = Reply {
            parent: reply.parent(),
            chain: reply.chain(),
            before: chain.span(full),
            open: true,
        };
        let total = Tokens(reply.bytes());
        residency.settle(hold, Some(follows), |end| end, Tokens::ZERO, total);
        let all = chain.with_reply(reply.parent(), reply.chain());
        assert_eq!(depth(&residency, W0, &all) as usize, all.len());
    }
    assert_eq!(
        depth(&residency, W0, &chain) as usize,
        chain.len(),
        "the replies answer for the prompt's short end"
    );
    assert_eq!(residency.tokens_on(W0), Tokens(256 + 2 * (702 - 256)));
}
