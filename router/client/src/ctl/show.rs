use std::fmt::Write as _;

use serde_json::Value;

use super::format::text;

pub(super) fn index(answer: &Value) -> String {
    let mut out = format!(
        "{} keys, {} with each worker's copy, in {} bytes{}\n\n{:<16} {:>7} {:>6} {:>8}  copies",
        answer["keys"],
        answer["entries"],
        answer["bytes"],
        if answer["complete"] == true {
            ""
        } else {
            "; of the 2,000 prefixes used last:"
        },
        "prefix",
        "keys",
        "forks",
        "holders",
    );
    for prefix in answer["prefixes"].as_array().into_iter().flatten() {
        let copy = |copy: &Value| {
            let tokens = copy["tokens"]
                .as_u64()
                .map_or("?".to_owned(), |tokens| tokens.to_string());
            format!("{} ({tokens} tokens)", text(copy, "worker"))
        };
        let copies: Vec<_> = prefix["copies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(copy)
            .collect();
        let _ = write!(
            out,
            "\n{:<16} {:>7} {:>6} {:>8}  {}",
            text(prefix, "prefix"),
            prefix["keys"].to_string(),
            prefix["forks"].to_string(),
            prefix["holders"].to_string(),
            copies.join(", "),
        );
    }
    out
}
