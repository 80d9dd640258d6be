//! Any calls in any order: no panic, and the same chain however the bytes are split.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use policy::fingerprint::{ChainBuilder, Field, MediaDigest, Medium};

#[derive(Arbitrary, Debug)]
enum Call<'a> {
    Message(&'a str),
    Prompt,
    Field(u8),
    Push(&'a [u8]),
    Media(u8, &'a [u8]),
    End,
    Reply,
}

const FIELDS: [Field; 4] = [Field::Text, Field::Name, Field::ToolArguments, Field::Other];

fn run(calls: &[Call<'_>], piece: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new("model", None);
    for call in calls {
        match call {
            Call::Message(role) => builder.begin_message(role),
            Call::Prompt => builder.begin_prompt(),
            Call::Field(code) => builder.field(FIELDS[usize::from(*code) % FIELDS.len()]),
            Call::Push(bytes) => bytes.chunks(piece).for_each(|bytes| builder.push(bytes)),
            Call::Media(code, bytes) => {
                builder.media(Field::Media, Medium::ALL[usize::from(*code) % Medium::ALL.len()], MediaDigest::of(bytes));
            }
            Call::End => builder.end_message(),
            Call::Reply => builder = builder.reply(),
        }
    }
    builder
}

fuzz_target!(|input: (Vec<Call<'_>>, u8)| {
    let (calls, piece) = input;
    let (whole, pieces) = (run(&calls, usize::MAX), run(&calls, 1 + usize::from(piece)));
    assert_eq!(whole.chain(), pieces.chain());
    assert!(whole.chain().ends().is_sorted());
    assert!(whole.chain().span(usize::MAX) <= whole.bytes());
});
