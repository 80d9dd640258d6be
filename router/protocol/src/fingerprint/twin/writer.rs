//! Writes a chat in the spellings that a client may use.

use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;

use super::chat::{Call, Chat, Item, Json, Part, audio, file, novel, rank_of, spelled};

pub(super) struct Writer(pub(super) Pcg64Mcg);

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

    /// Returns a value that a later duplicate overrides.
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

    pub(super) fn chat(&mut self, chat: &Chat) -> String {
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
