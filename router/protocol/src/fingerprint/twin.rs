//! Tests the fingerprint against a naive reference. A generated chat is written as JSON in a random valid spelling and
//! parsed; the reference spells the chat itself with `serde_json`.

use policy::fingerprint::{ChainBuilder, MediaDigest};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;

use super::super::parse::parse;
use super::super::routes::Endpoint;
use super::*;

#[derive(Clone, Debug)]
enum Json {
    Bare(&'static str),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// By a URL that is not empty.
    Image(String),
    /// By uuid, with an optional URL.
    Kept(String, Option<String>),
    File(String),
    Audio(Json),
    Novel(Json),
}

#[derive(Clone, Debug)]
struct Call {
    id: Option<String>,
    name: String,
    arguments: Result<String, Json>,
}

/// Fields of a message; their order matters.
#[derive(Clone, Debug)]
enum Item {
    Null,
    Content(String),
    Parts(Vec<Part>),
    Name(String),
    AnswerTo(String),
    Calls(Vec<Call>),
    /// Comes first in the canonical form.
    Reasoning(String),
}

#[derive(Clone, Debug)]
struct Chat {
    model: String,
    salt: Option<String>,
    extra_key: Option<String>,
    tools: Vec<Json>,
    messages: Vec<(String, Vec<Item>)>,
}

fn text() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        "\\", "\"", "\n", "\0", "/", "é", "😀", "\u{fffd}", "\u{7f}", "\u{1f}",
    ]);
    let run = (0usize..90, special).prop_map(|(length, special)| "x".repeat(length) + special);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(run, 0..9).prop_map(|runs| runs.concat())
    ]
}

fn value() -> impl Strategy<Value = Json> {
    let bare = prop::sample::select(vec!["null", "true", "0", "-1.50e+7", "false", "1e9"]);
    let leaf = prop_oneof![bare.prop_map(Json::Bare), text().prop_map(Json::Text)];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::List),
            prop::collection::vec((text(), inner), 0..4).prop_map(Json::Object),
        ]
    })
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        text().prop_map(Part::Text),
        text().prop_map(|url| Part::Image(if url.is_empty() { "u".into() } else { url })),
        (text(), prop::option::of(text())).prop_map(|(uuid, url)| Part::Kept(uuid, url)),
        text().prop_map(Part::File),
        value().prop_map(Part::Audio),
        value().prop_map(Part::Novel),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let arguments = prop_oneof![
        text().prop_map(Ok),
        value().prop_map(|json| Err(Json::Object(vec![("x".into(), json)])))
    ];
    (prop::option::of(text()), text(), arguments).prop_map(|(id, name, arguments)| Call {
        id,
        name,
        arguments,
    })
}

fn message() -> impl Strategy<Value = (String, Vec<Item>)> {
    let content = prop_oneof![
        Just(Item::Null),
        text().prop_map(Item::Content),
        prop::collection::vec(part(), 0..3).prop_map(Item::Parts),
    ];
    let rest = prop::sample::subsequence(vec![0, 1, 2, 3], 0..=4);
    let role = prop_oneof![
        prop::sample::select(vec!["user", "assistant", "tool"]).prop_map(String::from),
        text()
    ];
    (role, content, rest, text(), prop::collection::vec(call(), 0..3)).prop_map(
        |(role, content, rest, id, calls)| {
            let mut items = vec![content];
            items.extend(rest.into_iter().map(|kind| match kind {
                0 => Item::Name(id.clone()),
                1 => Item::AnswerTo(id.clone()),
                2 => Item::Calls(calls.clone()),
                _ => Item::Reasoning(id.clone()),
            }));
            (role, items)
        },
    )
}

fn chat() -> impl Strategy<Value = Chat> {
    let messages = prop::collection::vec(message(), 0..6);
    (
        text(),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::collection::vec(value(), 0..3),
        messages,
    )
        .prop_map(|(model, salt, extra_key, tools, messages)| Chat {
            model,
            salt,
            extra_key,
            tools,
            messages,
        })
}

// The reference.

fn spelled(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

fn compact(json: &Json) -> String {
    match json {
        Json::Bare(bare) => (*bare).to_owned(),
        Json::Text(text) => serde_json::to_string(text).unwrap(),
        Json::List(items) => format!("[{}]", items.iter().map(compact).collect::<Vec<_>>().join(",")),
        Json::Object(members) => {
            let member = |(key, value): &(String, Json)| {
                format!("{}:{}", serde_json::to_string(key).unwrap(), compact(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
        }
    }
}

fn tell(twin: &mut ChainBuilder, field: Field, canonical: &str) {
    twin.field(field);
    twin.push(canonical.as_bytes());
}

fn rank_of(item: &Item) -> u8 {
    match item {
        Item::Reasoning(_) => 0,
        Item::Calls(_) => 2,
        _ => 1,
    }
}

fn tell_item(twin: &mut ChainBuilder, item: &Item) {
    match item {
        Item::Null => {}
        Item::Content(text) => tell(twin, Field::Text, &spelled(text)),
        Item::Parts(parts) => parts.iter().for_each(|part| match part {
            Part::Text(text) => tell(twin, Field::Text, &spelled(text)),
            Part::Image(url) => twin.media(Field::Image, MediaDigest::of(spelled(url).as_bytes())),
            Part::Kept(uuid, _) => {
                let named = [b"\xFFimage\xFF", spelled(uuid).as_bytes()].concat();
                twin.media(Field::Image, MediaDigest::of(&named));
            }
            Part::File(id) => twin.media(Field::Media, MediaDigest::of(compact(&file(id)).as_bytes())),
            Part::Audio(json) => twin.media(Field::Media, MediaDigest::of(compact(&audio(json)).as_bytes())),
            Part::Novel(json) => tell(twin, Field::Other, &compact(&novel(json))),
        }),
        Item::Name(name) => tell(twin, Field::Name, &spelled(name)),
        Item::AnswerTo(id) => tell(twin, Field::ToolId, &spelled(id)),
        Item::Reasoning(text) => tell(twin, Field::Reasoning, &spelled(text)),
        Item::Calls(calls) => calls.iter().for_each(|call| {
            let arguments = match &call.arguments {
                Ok(text) => spelled(text),
                Err(json) => compact(json),
            };
            tell(twin, Field::ToolArguments, &arguments);
            tell(twin, Field::ToolName, &spelled(&call.name));
            tell(
                twin,
                Field::ToolId,
                &spelled(call.id.as_deref().unwrap_or_default()),
            );
        }),
    }
}

/// Salt for the root of the chain.
fn namespace(chat: &Chat) -> Option<String> {
    let given = [("0", &chat.salt), ("1", &chat.extra_key)];
    match given {
        [(_, Some(salt)), (_, None)] if !salt.starts_with('\0') => Some(salt.clone()),
        [(_, None), (_, None)] => None,
        _ => {
            let written = given.map(|(place, value)| match value {
                Some(value) => format!("\0{place}t{}:{value}", value.len()),
                None => String::new(),
            });
            Some(written.concat())
        }
    }
}

fn twin(chat: &Chat) -> ChainBuilder {
    let mut twin = ChainBuilder::new(&chat.model, namespace(chat).as_deref());
    if !chat.tools.is_empty() {
        twin.begin_message("tools");
    }
    chat.tools
        .iter()
        .for_each(|tool| tell(&mut twin, Field::Tools, &compact(tool)));
    for (role, items) in &chat.messages {
        twin.begin_message(role);
        for rank in [0, 1, 2] {
            let ranked = items.iter().filter(|item| rank_of(item) == rank);
            ranked.for_each(|item| tell_item(&mut twin, item));
        }
    }
    twin.end_message();
    twin
}

fn object(members: &[(&str, Json)]) -> Json {
    Json::Object(
        members
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    )
}

fn audio(json: &Json) -> Json {
    object(&[
        ("type", Json::Text("input_audio".into())),
        ("input_audio", json.clone()),
    ])
}

fn file(id: &str) -> Json {
    object(&[
        ("image_url", Json::Bare("null")),
        ("file_id", Json::Text(id.into())),
        ("type", Json::Text("image_url".into())),
    ])
}

fn novel(json: &Json) -> Json {
    object(&[("x", json.clone()), ("type", Json::Text("novel".into()))])
}

// The spellings that a client may use.

struct Writer(Pcg64Mcg);

impl Writer {
    fn chance(&mut self) -> bool {
        self.0.random_bool(0.3)
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n\t", "\r\n  "][self.0.random_range(0..6)]
    }

    fn string(&mut self, text: &str) -> String {
        let mut out = String::from("\"");
        let mut after_high = false;
        for character in text.chars() {
            let alone = character == char::REPLACEMENT_CHARACTER && self.chance();
            if alone && !after_high && self.chance() {
                out += "\\uDC7f";
            } else if alone {
                // A lone surrogate.
                out += "\\ud9AB";
                after_high = true;
                continue;
            } else if self.chance() {
                character
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| out += &format!("\\u{unit:04x}"));
            } else if character == '/' && self.chance() {
                out += "\\/";
            } else {
                out += &spelled(character.encode_utf8(&mut [0; 4]));
            }
            after_high = false;
        }
        out + "\""
    }

    fn list(&mut self, items: Vec<String>) -> String {
        let items: Vec<String> = items
            .into_iter()
            .map(|item| self.space().to_owned() + &item + self.space())
            .collect();
        format!("[{}{}]", items.join(","), self.space())
    }

    /// Writes members in this order, among unknown ones, some of them twice.
    fn object(&mut self, members: Vec<(&str, String)>) -> String {
        let mut written = Vec::new();
        let (mut members, mut last) = (members, Vec::new());
        for (key, value) in &mut members {
            if self.0.random_bool(0.05) {
                last.push((*key, std::mem::replace(value, self.decoy().to_owned())));
            }
        }
        last.shuffle(&mut self.0);
        for (key, value) in members.into_iter().chain(last) {
            while self.chance() {
                let ignored = ["\"temperature\":0.5", "\"x\": {\"role\": [\"no\"]}", "\"\":null"]
                    [self.0.random_range(0..3)];
                written.push(ignored.to_owned());
            }
            let (before, after) = (self.space(), self.space());
            written.push(format!("{}{before}:{after}{value}", self.string(key)));
        }
        let (before, after) = (self.space(), self.space());
        format!("{{{before}{}{after}}}", written.join(","))
    }

    /// A value that a later duplicate overrides.
    fn decoy(&mut self) -> &'static str {
        let decoys = [
            "null",
            "\"no\"",
            "\"text\"",
            "\"image_url\"",
            "\"file\"",
            "7",
            "{}",
            r#"{"url":"no","arguments":"no","name":"no"}"#,
            "[]",
            r#"[{"type":"text","text":"no","role":"no","content":"no"}]"#,
            r#"[{"id":"no","function":{"arguments":"no"}}]"#,
        ];
        decoys[self.0.random_range(0..decoys.len())]
    }

    fn shuffled(&mut self, mut members: Vec<(&str, String)>) -> String {
        members.shuffle(&mut self.0);
        self.object(members)
    }

    fn json(&mut self, json: &Json) -> String {
        match json {
            Json::Bare(bare) => (*bare).to_owned(),
            Json::Text(text) => self.string(text),
            Json::List(items) => {
                let items = items.iter().map(|item| self.json(item)).collect();
                self.list(items)
            }
            Json::Object(members) => {
                let members: Vec<String> = members
                    .iter()
                    .map(|(key, value)| {
                        self.string(key) + self.space() + ":" + self.space() + &self.json(value)
                    })
                    .collect();
                format!("{{{}{}{}}}", self.space(), members.join(","), self.space())
            }
        }
    }

    fn part(&mut self, part: &Part) -> String {
        let named = |writer: &mut Self, kind: &str, key: &'static str, value: String| {
            let kind = writer.string(kind);
            writer.shuffled(vec![("type", kind), (key, value)])
        };
        match part {
            Part::Text(text) => {
                let text = self.string(text);
                named(self, "text", "text", text)
            }
            Part::Image(url) if self.chance() => {
                let url = self.string(url);
                named(self, "input_image", "image_url", url)
            }
            Part::Image(url) => {
                let url = self.string(url);
                let image = self.shuffled(vec![("url", url), ("detail", "\"low\"".into())]);
                named(self, "image_url", "image_url", image)
            }
            Part::Kept(uuid, url) => {
                let url = url.as_ref().map_or("null".to_owned(), |url| self.string(url));
                let (kind, uuid) = (self.string("image_url"), self.string(uuid));
                self.shuffled(vec![("type", kind), ("uuid", uuid), ("image_url", url)])
            }
            Part::File(id) => self.json(&file(id)),
            Part::Audio(json) => self.json(&audio(json)),
            Part::Novel(json) => self.json(&novel(json)),
        }
    }

    fn call(&mut self, call: &Call) -> String {
        let arguments = match &call.arguments {
            Ok(text) => self.string(text),
            Err(json) => self.json(json),
        };
        let name = self.string(&call.name);
        let function = self.shuffled(vec![("name", name), ("arguments", arguments)]);
        let mut members = vec![("function", function), ("type", "\"function\"".into())];
        if let Some(id) = &call.id {
            members.push(("id", self.string(id)));
        }
        self.shuffled(members)
    }

    fn message(&mut self, role: &str, items: &[Item]) -> String {
        let mut members = Vec::new();
        // Fields with a rank of their own may be written anywhere.
        let mut items: Vec<&Item> = items.iter().collect();
        if self.chance() {
            items.sort_by_key(|item| rank_of(item) == 1);
        } else if self.chance() {
            items.sort_by_key(|item| rank_of(item) != 1);
        }
        for item in items {
            members.push(match item {
                Item::Null => ("content", "null".to_owned()),
                Item::Content(text) => ("content", self.string(text)),
                Item::Parts(parts) => {
                    let parts = parts.iter().map(|part| self.part(part)).collect();
                    ("content", self.list(parts))
                }
                Item::Name(name) => ("name", self.string(name)),
                Item::AnswerTo(id) => ("tool_call_id", self.string(id)),
                Item::Reasoning(text) => {
                    let name = ["reasoning", "reasoning_content"][self.0.random_range(0..2)];
                    (name, self.string(text))
                }
                Item::Calls(calls) => {
                    let calls = calls.iter().map(|call| self.call(call)).collect();
                    ("tool_calls", self.list(calls))
                }
            });
        }
        let (place, role) = (self.0.random_range(0..=members.len()), self.string(role));
        members.insert(place, ("role", role));
        self.object(members)
    }

    fn chat(&mut self, chat: &Chat) -> String {
        let messages = chat
            .messages
            .iter()
            .map(|(role, items)| self.message(role, items))
            .collect();
        let mut members = vec![
            ("messages", self.list(messages)),
            ("model", self.string(&chat.model)),
        ];
        if !chat.tools.is_empty() || self.chance() {
            let tools = chat.tools.iter().map(|tool| self.json(tool)).collect();
            members.push(("tools", self.list(tools)));
        }
        if let Some(salt) = &chat.salt {
            members.push(("cache_salt", self.string(salt)));
        }
        if let Some(extra_key) = &chat.extra_key {
            members.push(("extra_key", self.string(extra_key)));
        }
        self.shuffled(members)
    }
}

proptest! {
    #[test]
    fn a_fingerprint_is_of_what_is_said_and_not_of_how_it_is_written(chat in chat(), seed in any::<u64>()) {
        let body = Writer(Pcg64Mcg::seed_from_u64(seed)).chat(&chat);
        prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok(), "the test writes JSON: {}", body);
        let read = parse(Endpoint::Chat, body.as_bytes()).unwrap().fingerprint;
        let twin = twin(&chat);
        prop_assert_eq!(read.chain.hashes(), twin.chain().hashes(), "{}", body);
        prop_assert_eq!(read.chain.ends(), twin.chain().ends());
        prop_assert_eq!(read.extent, Extent::Bytes(twin.bytes()));
        let (mut reply, mut expected) = (read.reply.unwrap(), twin.reply());
        prop_assert_eq!((reply.parent(), reply.bytes()), (expected.parent(), expected.bytes()));
        for reply in [&mut reply, &mut expected] {
            reply.field(Field::Text);
            reply.push_text("and so on");
            reply.end_message();
        }
        prop_assert_eq!(reply.chain(), expected.chain());
    }
}
