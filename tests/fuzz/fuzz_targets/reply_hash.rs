//! Any pieces of a reply, in any order: what is learned of it is what the message has when it is sent back.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use protocol::api::Endpoint;
use protocol::fingerprint::Fingerprint;
use protocol::parse::parse;
use protocol::reply::{Piece, ReplyBuilder};

#[derive(Arbitrary, Debug)]
enum Said<'a> {
    Reasoning(&'a str),
    Text(&'a str),
    Call(u8, &'a str, &'a str, &'a str),
    Unrepeated,
}

/// The message as a client puts it together; `None` if clients would differ.
#[derive(Default)]
struct Message {
    reasoning: String,
    text: String,
    calls: BTreeMap<u8, [String; 3]>,
}

impl Message {
    fn of(pieces: &[Said<'_>]) -> Option<Self> {
        let mut message = Self::default();
        let mut answered = false;
        for piece in pieces {
            match piece {
                Said::Reasoning(_) if answered => return None,
                Said::Reasoning(text) => message.reasoning += text,
                Said::Text(text) => {
                    answered = true;
                    message.text += text;
                }
                Said::Call(index, id, name, arguments) => {
                    let call = message.calls.entry(*index).or_default();
                    for (known, said) in std::iter::zip(&mut call[..2], [id, name]) {
                        if known.is_empty() {
                            known.push_str(said);
                        } else if !said.is_empty() && known != said {
                            return None;
                        }
                    }
                    call[2] += arguments;
                }
                Said::Unrepeated => return None,
            }
        }
        (message.calls.len() <= 128).then_some(message)
    }

    fn json(&self) -> Value {
        let call = |[id, name, arguments]: &[String; 3]| json!({"id": id, "function": {"name": name, "arguments": arguments}});
        let calls: Vec<Value> = self.calls.values().map(call).collect();
        json!({"role": "assistant", "content": self.text, "reasoning": self.reasoning, "tool_calls": calls})
    }
}

fn fingerprint(messages: Value) -> Fingerprint {
    let body = json!({"model": "m", "messages": messages}).to_string();
    parse(Endpoint::Chat, body.as_bytes()).expect("the body is JSON").fingerprint
}

fuzz_target!(|pieces: Vec<Said<'_>>| {
    let question = json!({"role": "user", "content": "go on?"});
    let turn = fingerprint(json!([question]));
    let mut reply = ReplyBuilder::new(turn.reply.expect("a chat has a reply"));
    for piece in &pieces {
        reply.push(match *piece {
            Said::Reasoning(text) => Piece::Reasoning(text),
            Said::Text(text) => Piece::Text(text),
            Said::Call(index, id, name, arguments) => Piece::Call { index: Some(index.into()), id, name, arguments },
            Said::Unrepeated => Piece::Unrepeated,
        });
    }
    let learned = reply.finish().map(|reply| {
        let mut known = Arc::unwrap_or_clone(turn.chain);
        known.extend_from(reply.chain());
        Arc::new(known)
    });
    let resent = Message::of(&pieces).map(|message| fingerprint(json!([question, message.json()])).chain);
    assert_eq!(learned, resent);
});
