//! Chat bodies as clients really send them: what they differ in is how often a string is interrupted by an escape, of
//! what kind, and how many messages there are.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};

/// What stands in a body besides its messages; the model after them, as the clients' libraries have it.
const REST: &str = "\"model\":\"m\",\"stream\":true,\"temperature\":0.7";

/// A kind of body: its name, and how it is written at a size.
pub(crate) type Shape = (&'static str, fn(usize) -> String);

/// All of them. In brackets, how often an escape interrupts the text.
pub(crate) const SHAPES: [Shape; 10] = [
    ("prose, a line break in each paragraph (405 B)", |bytes| {
        chat(bytes, 4 << 10, |rng| sentence(rng, 404) + "\n")
    }),
    ("chat with code: \\n, \\\", \\\\, raw UTF-8 (40 B)", |bytes| {
        mixed(bytes, code)
    }),
    (
        "the same in content parts, members sorted, pretty-printed",
        sorted_parts,
    ),
    ("the same in up to 200 messages", |bytes| {
        chat(bytes, (bytes / 200).max(256), code)
    }),
    ("tool calls: JSON in strings (9 B)", tool_calls),
    ("an agent: 40 KB of tools, then tool calls", agent),
    ("French, all but ASCII escaped (\\u00e9 in each 45 B)", |bytes| {
        to_ascii(&mixed(bytes, french))
    }),
    ("French, raw UTF-8", |bytes| mixed(bytes, french)),
    ("Chinese, raw UTF-8", |bytes| mixed(bytes, chinese)),
    ("Chinese, all but ASCII escaped (6 B)", |bytes| {
        to_ascii(&mixed(bytes / 2, chinese))
    }),
];

/// A body of this shape and, within a fiftieth, this size.
pub(crate) fn of_size(write: fn(usize) -> String, bytes: usize) -> String {
    let mut asked = bytes;
    let mut body = write(asked);
    for _ in 0..20 {
        if body.len().abs_diff(bytes) * 50 <= bytes {
            break;
        }
        asked = (asked as f64 * bytes as f64 / body.len() as f64) as usize;
        body = write(asked);
    }
    body
}

type Text = fn(&mut Pcg64Mcg) -> String;

fn words(rng: &mut Pcg64Mcg, of: &[&str], bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(of[rng.random_range(0..of.len())]);
    }
    text
}

fn sentence(rng: &mut Pcg64Mcg, bytes: usize) -> String {
    const WORDS: [&str; 8] = [
        "the ",
        "quick ",
        "prefix ",
        "lives on ",
        "a worker, ",
        "and ",
        "so the next turn ",
        "waits less. ",
    ];
    words(rng, &WORDS, bytes)
}

fn code(rng: &mut Pcg64Mcg) -> String {
    const WORDS: [&str; 12] = [
        "let value = compute(index, limit)",
        ";\n    ",
        ";\n",
        "println!(\"{}\\n\", name)",
        "if path.starts_with(\"C:\\\\tmp\") { return early(state) }\n",
        " // déjà vu, see the note above about ordering\n",
        "\t\tfor (key, entry) in table.iter().filter(|e| e.is_ready())",
        "match self.kind.as_str() {\n",
        "and this part explains in plain words what the function is there for. ",
        "}\n\n",
        " = \"some literal\"",
        "The call returns the previous value — “none” if there was none. ",
    ];
    let bytes = rng.random_range(60..400);
    words(rng, &WORDS, bytes)
}

fn french(rng: &mut Pcg64Mcg) -> String {
    const WORDS: [&str; 6] = [
        "la mémoire du serveur ",
        "répond sans attendre ",
        "et le tour suivant commence ",
        "après lui, ",
        "à la fin de la phrase il y a un mot de plus. ",
        "une page entre deux autres ",
    ];
    let bytes = rng.random_range(100..300);
    words(rng, &WORDS, bytes) + "\n"
}

fn chinese(rng: &mut Pcg64Mcg) -> String {
    const WORDS: [&str; 6] = ["缓存", "前缀在", "工作节点上", "，下一轮对话", "不必等待", "。"];
    let bytes = rng.random_range(100..300);
    words(rng, &WORDS, bytes) + "\n"
}

fn fill(rng: &mut Pcg64Mcg, bytes: usize, text: Text) -> String {
    let mut content = String::new();
    while content.len() < bytes {
        content.push_str(&text(rng));
    }
    content
}

/// Members in the order of the clients' libraries, which `serde_json` would sort by name.
fn message(at: usize, content: &str) -> String {
    let role = ["user", "assistant"][at % 2];
    format!("{{\"role\":\"{role}\",\"content\":{}}}", json!(content))
}

fn body(messages: impl IntoIterator<Item = String>) -> String {
    let messages: Vec<String> = messages.into_iter().collect();
    format!("{{\"messages\":[{}],{REST}}}", messages.join(","))
}

/// Messages of one size.
fn chat(bytes: usize, each: usize, text: Text) -> String {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    body((0..bytes / each).map(|at| message(at, &fill(&mut rng, each * 9 / 10, text))))
}

/// Messages from forty bytes to twelve thousand, short ones as often as long ones.
fn contents(bytes: usize, text: Text) -> Vec<String> {
    let mut rng = Pcg64Mcg::seed_from_u64(2);
    let mut contents = Vec::new();
    let mut left = bytes as i64;
    while left > 0 {
        let size = 40.0 * 300f64.powf(rng.random());
        contents.push(fill(&mut rng, size as usize, text));
        left -= contents.last().map_or(0, String::len) as i64;
    }
    contents
}

fn mixed(bytes: usize, text: Text) -> String {
    body(
        contents(bytes, text)
            .iter()
            .enumerate()
            .map(|(at, text)| message(at, text)),
    )
}

/// As Go and other languages write maps: content before role, text before type.
fn sorted_parts(bytes: usize) -> String {
    let messages = contents(bytes, code).into_iter();
    let message = |text| json!({"role": "user", "content": [{"type": "text", "text": text}]});
    let body = json!({"messages": messages.map(message).collect::<Vec<_>>(), "model": "m", "stream": true});
    serde_json::to_string_pretty(&body).unwrap_or_default()
}

fn calls(bytes: usize) -> Vec<String> {
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    let mut messages = vec![message(0, &sentence(&mut rng, 6000))];
    let mut left = bytes as i64 - 6000;
    while left > 0 {
        let id = format!("call_{:012x}", rng.random::<u32>());
        let lines: Vec<u32> = (0..rng.random_range(2..30))
            .map(|_| rng.random_range(1..999))
            .collect();
        let arguments =
            json!({"path": "src/path/json.rs", "old": code(&mut rng), "lines": lines, "dry_run": false})
                .to_string();
        let found: Vec<Value> = (0..rng.random_range(1..12))
            .map(|at| json!({"file": format!("src/{at}.rs"), "line": at, "text": sentence(&mut rng, 20), "score": 0.5}))
            .collect();
        let result = json!({"status": "ok", "matches": found}).to_string();
        left -= (arguments.len() + result.len()) as i64 * 5 / 4 + 250;
        let (arguments, result) = (json!(arguments), json!(result));
        messages.push(format!(
            "{{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{{\"id\":\"{id}\",\
             \"function\":{{\"arguments\":{arguments},\"name\":\"edit_file\"}},\"type\":\"function\"}}]}}"
        ));
        messages.push(format!(
            "{{\"role\":\"tool\",\"tool_call_id\":\"{id}\",\"content\":{result}}}"
        ));
    }
    messages
}

fn tool_calls(bytes: usize) -> String {
    body(calls(bytes))
}

fn agent(bytes: usize) -> String {
    let mut rng = Pcg64Mcg::seed_from_u64(4);
    let tool = |at: usize, rng: &mut Pcg64Mcg| {
        let field = |rng: &mut Pcg64Mcg| json!({"type": "string", "description": sentence(rng, 70)});
        json!({"type": "function", "function": {"name": format!("tool_{at}"), "description": sentence(rng, 400), "parameters": {
            "type": "object", "required": ["path", "text"], "additionalProperties": false,
            "properties": {"path": field(rng), "text": field(rng), "limit": {"type": "integer", "minimum": 0}, "mode": {"enum": ["a", "b"]}}}}})
    };
    let tools: Vec<Value> = (0..if bytes > 100_000 { 45 } else { 4 })
        .map(|at| tool(at, &mut rng))
        .collect();
    let body = body(calls(bytes - bytes.min(40 << 10) / 2));
    format!("{},\"tools\":{}}}", &body[..body.len() - 1], Value::from(tools))
}

/// As `json.dumps` writes it.
fn to_ascii(body: &str) -> String {
    let mut units = [0; 2];
    body.chars()
        .map(|c| match c.is_ascii() {
            true => c.to_string(),
            false => c
                .encode_utf16(&mut units)
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
        })
        .collect()
}
