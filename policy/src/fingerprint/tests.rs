use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

fn message(builder: &mut ChainBuilder, role: &str, text: &str) {
    builder.begin_message(role);
    builder.field(Field::Text);
    builder.push(text.as_bytes());
    builder.end_message();
}

fn chat(messages: &[(&str, &str)]) -> Chain {
    let mut builder = ChainBuilder::new("m", None);
    for (role, text) in messages {
        message(&mut builder, role, text);
    }
    builder.into_chain()
}

#[test]
fn a_turn_extends_the_chain_of_the_turn_before() {
    let long = "x".repeat(1000);
    let first = chat(&[("system", &long), ("user", "hello")]);
    let second = chat(&[
        ("system", &long),
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "bye"),
    ]);
    assert_eq!(first.len(), 5);
    assert_eq!(second.hashes()[..first.len()], *first.hashes());
    assert_eq!(second.ends()[..first.len()], *first.ends());
    assert_eq!(second.len(), first.len() + 2);
}

#[test]
fn another_model_or_salt_shares_no_key() {
    let of = |model: &str, salt: Option<&str>| {
        let mut builder = ChainBuilder::new(model, salt);
        message(&mut builder, "user", "hello");
        builder.into_chain()
    };
    let chains = [
        of("a", None),
        of("b", None),
        of("a", Some("")),
        of("a", Some("s")),
        of("as", None),
    ];
    for (i, left) in chains.iter().enumerate() {
        for right in &chains[i + 1..] {
            assert_ne!(left.hashes()[0], right.hashes()[0]);
        }
    }
}

#[test]
fn system_and_developer_are_different_roles() {
    assert_ne!(
        chat(&[("system", "be brief")]).hashes(),
        chat(&[("developer", "be brief")]).hashes()
    );
}

#[test]
fn an_empty_field_leaves_no_trace() {
    let mut with = ChainBuilder::new("m", None);
    with.begin_message("assistant");
    with.field(Field::Text);
    with.push(b"");
    with.field(Field::ToolName);
    with.push(b"search");
    with.end_message();
    let mut without = ChainBuilder::new("m", None);
    without.begin_message("assistant");
    without.field(Field::ToolName);
    without.push(b"search");
    without.end_message();
    assert_eq!(with.chain(), without.chain());
}

#[test]
fn two_parts_differ_from_one_and_a_name_from_a_text() {
    let mut two = ChainBuilder::new("m", None);
    two.begin_message("user");
    for part in ["a", "b"] {
        two.field(Field::Text);
        two.push(part.as_bytes());
    }
    two.end_message();
    assert_ne!(two.chain(), &chat(&[("user", "ab")]));
    let mut name = ChainBuilder::new("m", None);
    name.begin_message("user");
    name.field(Field::Name);
    name.push(b"ab");
    name.end_message();
    assert_ne!(name.chain(), &chat(&[("user", "ab")]));
}

#[test]
fn an_image_is_named_by_its_data_in_one_piece_or_many() {
    let url = b"data:image/png;base64,iVBORw0KGgo=";
    let mut hasher = MediaHasher::new();
    url.chunks(5).for_each(|piece| hasher.push(piece));
    assert_eq!(hasher.digest(), MediaDigest::of(url));
    assert_ne!(MediaDigest::of(b"a"), MediaDigest::of(b"b"));
    assert!(MediaDigest::of(url).hex().iter().all(u8::is_ascii_hexdigit));
}

#[test]
fn a_reply_hashed_in_pieces_matches_the_next_turn() {
    let answer = "0123456789".repeat(70);
    let mut request = ChainBuilder::new("m", None);
    message(&mut request, "user", "count");
    let mut reply = request.reply();
    reply.field(Field::Text);
    answer.as_bytes().chunks(7).for_each(|delta| reply.push(delta));
    reply.end_message();
    let next = chat(&[("user", "count"), ("assistant", &answer), ("user", "more")]);
    let mut joined = request.chain().clone();
    joined.extend_from(reply.chain());
    assert_eq!(next.hashes()[..joined.len()], *joined.hashes());
    assert_eq!(next.ends()[..joined.len()], *joined.ends());
    assert_eq!(reply.parent(), request.chain().last());
}

#[test]
fn a_completion_continues_inside_its_plain_prompt() {
    let text = "abcdefgh".repeat(100);
    let (prompt, completion) = text.split_at(300);
    let whole = |text: &str| {
        let mut builder = ChainBuilder::new("m", None);
        builder.begin_prompt();
        builder.push(text.as_bytes());
        builder
    };
    let mut request = whole(prompt);
    let mut reply = request.reply();
    reply.push(completion.as_bytes());
    request.end_message();
    let mut next = whole(&text);
    next.end_message();
    assert_eq!(request.chain().len(), 2, "one full chunk and one short");
    let parent = next
        .chain()
        .hashes()
        .iter()
        .position(|key| Some(*key) == reply.parent())
        .unwrap();
    assert_eq!(parent, 0, "the short chunk is not part of the longer text");
    let full = reply.chain().len();
    assert_eq!(next.chain().hashes()[1..=full], *reply.chain().hashes());
}

#[test]
fn a_reply_knows_whether_it_goes_on_within_a_text_whatever_that_text_fills() {
    for length in [0, 1, 253, 254, 255, 510] {
        let text = vec![b'x'; length];
        let mut builder = ChainBuilder::new("m", None);
        let mut pieces = Pieces::new();
        builder.begin_prompt();
        builder.push(&text);
        pieces.begin_prompt();
        pieces.push(&text);
        assert!(builder.reply().goes_on() && !builder.goes_on(), "{length}");
        assert!(pieces.rooted(&Pieces::new(), "m", None).1.goes_on(), "{length}");
        builder.begin_message("user");
        builder.push(&text);
        builder.end_message();
        assert!(!builder.reply().goes_on(), "{length}");
    }
}

#[test]
fn a_restarted_builder_forgets_everything_but_its_memory() {
    let mut builder = ChainBuilder::new("other", Some("salt"));
    message(&mut builder, "user", &"y".repeat(700));
    builder.begin_message("user");
    builder.field(Field::Text);
    builder.push(b"unfinished");
    builder.restart("m", None);
    message(&mut builder, "user", "hello");
    assert_eq!(builder.chain(), &chat(&[("user", "hello")]));
    assert_eq!(builder.bytes(), builder.chain().span(usize::MAX));
}

#[test]
fn token_blocks_chain_and_drop_the_partial_one() {
    let tokens: Vec<u32> = (0..1000).collect();
    let size = NonZeroU32::new(16).unwrap();
    let root = token_root("m", None);
    let mut whole = Chain::new();
    push_token_blocks(root, &tokens, size, &mut whole);
    assert_eq!(whole.len(), 62);
    assert_eq!(whole.span(62), 992);
    let mut pieces = Chain::new();
    push_token_blocks(root, &tokens[..320], size, &mut pieces);
    push_token_blocks(pieces.last().unwrap(), &tokens[320..], size, &mut pieces);
    assert_eq!(pieces, whole);
    assert_ne!(token_root("m", Some("s")), root);
    let mut large = Chain::new();
    push_token_blocks(root, &tokens, NonZeroU32::new(500).unwrap(), &mut large);
    assert_eq!(large.ends(), [500, 1000]);
}

#[test]
fn each_character_is_spelled_as_serde_spells_it() {
    for character in ('\0'..'\u{3000}').chain(['\u{fffd}', '😀', char::MAX]) {
        let quoted = serde_json::to_string(&character).unwrap();
        let mut room = [0; 8];
        let length = spell(character, &mut room);
        assert_eq!(&room[..length], &quoted.as_bytes()[1..quoted.len() - 1]);
    }
}

#[test]
fn a_key_depends_on_every_bit_of_its_piece_and_of_the_key_before() {
    let piece = [7u8; CHUNK_BYTES];
    let (digest, link) = (chain::digest(&piece), chain::link(99, &piece));
    for bit in 0..CHUNK_BYTES * 8 {
        let mut other = piece;
        other[bit / 8] ^= 1 << (bit % 8);
        let changed = (chain::digest(&other) ^ digest).count_ones();
        assert!((12..=52).contains(&changed), "bit {bit} changes {changed}");
    }
    let mut changed = 0;
    for bit in 0..64 {
        let (before, after) = (
            chain::fold(99 ^ 1 << bit, digest),
            chain::fold(99, digest ^ 1 << bit),
        );
        assert!(before != link && after != link);
        changed += (before ^ link).count_ones() + (after ^ link).count_ones();
    }
    assert!(
        (3600..=4600).contains(&changed),
        "{changed} of 8192 bits, half of them expected"
    );
    assert_ne!(chain::fold(1, 2), chain::fold(2, 1));
}

/// The canonical form computed without streaming: the pieces of each message's canonical bytes, and whether a key ends
/// with each.
fn naive(messages: &[(String, String)]) -> Vec<(u64, u64)> {
    let mut link = super::chain::root(b"tailroute text 6", "m", None);
    let (mut keys, mut start, mut end) = (Vec::new(), 0, 0);
    for (role, text) in messages {
        let mut bytes = vec![0xFF, 0x01];
        bytes.extend_from_slice(role.as_bytes());
        if !text.is_empty() {
            bytes.extend_from_slice(&[0xFF, 0x10]);
            bytes.extend_from_slice(text.as_bytes());
        }
        let mut chunks = bytes.chunks(CHUNK_BYTES).peekable();
        while let Some(chunk) = chunks.next() {
            link = super::chain::link(link, chunk);
            end += chunk.len() as u64;
            let sizes = [8192, 4096, 2048, 1024, 512];
            let most = sizes.into_iter().find(|size| size * 8 <= start).unwrap_or(256);
            if end - start == most || chunks.peek().is_none() {
                keys.push((link, end));
                start = end;
            }
        }
    }
    keys
}

fn deep(first: usize, more: &[(&str, &str)]) -> Chain {
    let first = "x".repeat(first);
    let mut messages = vec![("user", first.as_str())];
    messages.extend_from_slice(more);
    chat(&messages)
}

#[test]
fn a_key_is_at_most_an_eighth_of_what_comes_before_it() {
    let chain = deep(1 << 20, &[]);
    let mut start = 0;
    for &end in chain.ends() {
        let length = end - std::mem::replace(&mut start, end);
        assert!(
            length <= (end - length).max(8 * 256) / 8,
            "{length} bytes before {end}"
        );
    }
    assert_eq!(chain.len(), 169, "of 4,097 pieces");
}

#[test]
fn a_message_ends_with_a_key_wherever_it_ends() {
    for length in [1, 248, 249, 250, 1000, 4096, 5000] {
        let said = "y".repeat(length);
        let chain = deep(200_000, &[("user", &said), ("user", "more")]);
        let known = deep(200_000, &[("user", &said)]);
        assert_eq!(chain.hashes()[..known.len()], *known.hashes(), "{length}");
        let ends: Vec<_> = chain.message_ends().collect();
        assert_eq!(ends.len(), 3, "{length}");
        assert_eq!(
            ends[1],
            (known.last().unwrap(), known.span(known.len())),
            "{length}"
        );
        assert_eq!(known.message_ends().collect::<Vec<_>>(), ends[..2]);
    }
}

#[test]
fn a_reply_deep_in_a_conversation_has_the_keys_of_the_next_turn() {
    let answer = "0123456789".repeat(1500);
    let mut request = ChainBuilder::new("m", None);
    message(&mut request, "user", &"x".repeat(150_000));
    let mut reply = request.reply();
    reply.field(Field::Text);
    answer.as_bytes().chunks(7).for_each(|delta| reply.push(delta));
    reply.end_message();
    let next = deep(150_000, &[("assistant", &answer), ("user", "more")]);
    let joined = request.chain().with_reply(reply.parent(), reply.chain());
    assert_eq!(next.hashes()[..joined.len()], *joined.hashes());
    assert!(next.message_ends().take(2).eq(joined.message_ends()));
    assert!(reply.chain().len() < 7, "{}", reply.chain().len());
}

#[test]
fn a_plain_prompt_has_a_key_for_each_piece_however_long_it_is() {
    for (length, stops) in [(99_998, 1), (100_350, 0)] {
        let text = vec![b'x'; length];
        let mut pieces = Pieces::new();
        pieces.begin_prompt();
        pieces.push(&text);
        let (chain, mut reply) = pieces.rooted(&Pieces::new(), "m", None);
        assert_eq!(chain.len(), (length + 2).div_ceil(CHUNK_BYTES));
        assert_eq!(chain.message_ends().count(), stops, "{length}");
        reply.push(&[b'y'; 600]);
        assert_eq!(reply.chain().len(), 2, "{length}");
    }
}

proptest! {
    #[test]
    fn any_split_of_the_same_bytes_gives_the_same_chain(
        messages in prop::collection::vec(("[a-z]{1,9}", ".{0,700}"), 0..6),
        piece in 1usize..600,
    ) {
        let mut builder = ChainBuilder::new("m", None);
        for (role, text) in &messages {
            builder.begin_message(role);
            builder.field(Field::Text);
            text.as_bytes().chunks(piece).for_each(|bytes| builder.push(bytes));
            builder.end_message();
        }
        let keys = builder.chain().hashes().iter().map(|hash| hash.0);
        let keys: Vec<_> = keys.zip(builder.chain().ends().iter().copied()).collect();
        prop_assert_eq!(keys, naive(&messages));
        prop_assert_eq!(builder.chain().span(usize::MAX), builder.bytes());
    }

    #[test]
    fn pieces_become_the_chain_that_a_builder_would_have_made(
        tools in prop::option::of((".{0,700}", 0usize..100_000)),
        messages in prop::collection::vec(("[a-z\n]{1,9}", ".{0,700}"), 0..6),
        piece in 1usize..64,
        prompt in any::<bool>(),
    ) {
        let (mut first, mut pieces, mut builder) = (Pieces::new(), Pieces::new(), ChainBuilder::new("m", Some("s")));
        if let Some((tools, more)) = &tools {
            let tools = &(tools.clone() + &"t".repeat(*more));
            message(&mut builder, "tools", tools);
            first.begin_message("tools");
            first.field(Field::Text);
            first.push(tools.as_bytes());
            first.end_message();
        }
        for (role, text) in &messages {
            builder.begin_message(role);
            builder.field(Field::Text);
            builder.push_text(text);
            pieces.begin_message(role);
            pieces.field(Field::Text);
            spelled(text, |bytes| bytes.chunks(piece).for_each(|bytes| {
                let mut window = [0xAA; 64];
                window[..bytes.len()].copy_from_slice(bytes);
                pieces.push_short(&window, bytes.len());
            }));
        }
        if prompt {
            builder.begin_prompt();
            builder.push(b"and");
            pieces.begin_prompt();
            pieces.push(b"and");
        } else {
            builder.end_message();
            pieces.end_message();
        }
        let expected = builder.reply();
        builder.end_message();
        let (chain, reply) = pieces.rooted(&first, "m", Some("s"));
        prop_assert_eq!(&chain, builder.chain());
        prop_assert_eq!((reply.parent(), reply.bytes()), (expected.parent(), expected.bytes()));
        let [reply, expected] = [reply, expected].map(|mut reply| {
            reply.push_text("so\n");
            reply.end_message();
            reply.into_chain()
        });
        prop_assert_eq!(reply, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn keys_deep_in_a_prompt_are_those_of_the_form_written_out(
        lengths in prop::collection::vec(0usize..90_000, 1..5),
        piece in 1usize..5000,
    ) {
        let messages: Vec<_> = lengths.iter().map(|&length| ("user".to_owned(), "w".repeat(length))).collect();
        let mut builder = ChainBuilder::new("m", None);
        let mut pieces = Pieces::new();
        for (role, text) in &messages {
            builder.begin_message(role);
            builder.field(Field::Text);
            text.as_bytes().chunks(piece).for_each(|bytes| builder.push(bytes));
            builder.end_message();
            pieces.begin_message(role);
            pieces.field(Field::Text);
            pieces.push(text.as_bytes());
            pieces.end_message();
        }
        let keys = builder.chain().hashes().iter().map(|hash| hash.0);
        let keys: Vec<_> = keys.zip(builder.chain().ends().iter().copied()).collect();
        prop_assert_eq!(keys, naive(&messages));
        prop_assert_eq!(&pieces.rooted(&Pieces::new(), "m", None).0, builder.chain());
    }
}
