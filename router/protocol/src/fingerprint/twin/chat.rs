//! Generated chats.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum Json {
    Bare(&'static str),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    /// An image by a URL that is not empty.
    Image(String),
    /// An image by `uuid`, with an optional URL.
    Kept(String, Option<String>),
    File(String),
    Audio(Json),
    Novel(Json),
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: Result<String, Json>,
}

/// Member of a message. The order of members matters.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Null,
    Content(String),
    Parts(Vec<Part>),
    Name(String),
    AnswerTo(String),
    Calls(Vec<Call>),
    /// Reasoning, which comes first in the canonical form.
    Reasoning(String),
}

#[derive(Clone, Debug)]
pub(super) struct Chat {
    pub(super) model: String,
    pub(super) salt: Option<String>,
    pub(super) extra_key: Option<String>,
    pub(super) tools: Vec<Json>,
    pub(super) messages: Vec<(String, Vec<Item>)>,
}

pub(super) fn text() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        "\\", "\"", "\n", "\0", "/", "é", "😀", "\u{fffd}", "\u{7f}", "\u{1f}",
    ]);
    let run = (0usize..90, special).prop_map(|(length, special)| "x".repeat(length) + special);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(run, 0..9).prop_map(|runs| runs.concat())
    ]
}

pub(super) fn value() -> impl Strategy<Value = Json> {
    let bare = prop::sample::select(vec!["null", "true", "0", "-1.50e+7", "false", "1e9"]);
    let leaf = prop_oneof![bare.prop_map(Json::Bare), text().prop_map(Json::Text)];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::List),
            prop::collection::vec((text(), inner), 0..4).prop_map(Json::Object),
        ]
    })
}

pub(super) fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        text().prop_map(Part::Text),
        text().prop_map(|url| Part::Image(if url.is_empty() { "u".into() } else { url })),
        (text(), prop::option::of(text())).prop_map(|(uuid, url)| Part::Kept(uuid, url)),
        text().prop_map(Part::File),
        value().prop_map(Part::Audio),
        value().prop_map(Part::Novel),
    ]
}

pub(super) fn call() -> impl Strategy<Value = Call> {
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

pub(super) fn message() -> impl Strategy<Value = (String, Vec<Item>)> {
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

pub(super) fn chat() -> impl Strategy<Value = Chat> {
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

pub(super) fn spelled(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

pub(super) fn compact(json: &Json) -> String {
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

pub(super) fn rank_of(item: &Item) -> u8 {
    match item {
        Item::Reasoning(_) => 0,
        Item::Calls(_) => 2,
        _ => 1,
    }
}

pub(super) fn object(members: &[(&str, Json)]) -> Json {
    Json::Object(
        members
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    )
}

pub(super) fn audio(json: &Json) -> Json {
    object(&[
        ("type", Json::Text("input_audio".into())),
        ("input_audio", json.clone()),
    ])
}

pub(super) fn file(id: &str) -> Json {
    object(&[
        ("image_url", Json::Bare("null")),
        ("file_id", Json::Text(id.into())),
        ("type", Json::Text("image_url".into())),
    ])
}

pub(super) fn novel(json: &Json) -> Json {
    object(&[("x", json.clone()), ("type", Json::Text("novel".into()))])
}
