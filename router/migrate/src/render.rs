//! Writes the text of a draft, and checks it by loading it.

use config::{Problem, Sources};
use toml::Value;

use crate::Migration;
use crate::draft::{ConfigDraft, DraftNote, DraftWorker};
use crate::source::Source;

/// Sections in the order of the configuration's reference.
const SECTIONS: &[&str] = &[
    "server",
    "admin",
    "discovery.kubernetes",
    "discovery.file",
    "routing",
    "routing.cache_aware",
    "health",
    "failure",
    "http",
    "limits",
    "admission",
    "tls",
    "tls.workers",
    "traces",
    "log",
];
/// Largest number of rounds in which values are taken out.
const MOST_ROUNDS: usize = 512;

/// Writes the draft. Values that tailroute refuses are taken out and reported.
pub(crate) fn finished(mut draft: ConfigDraft, source: Source, name: &str) -> Migration {
    keep_ports_apart(&mut draft);
    let mut toml = String::new();
    for _ in 0..MOST_ROUNDS {
        without_workers(&mut draft, source);
        toml = text(&draft, source, name);
        let loaded = config::load(&Sources {
            file: Some(("tailroute.toml", &toml)),
            ..Sources::default()
        });
        let Err(problems) = loaded else { break };
        // From the end, so that the indices of earlier list elements stay; each element once.
        let mut in_order: Vec<(Option<ElementIndex<'_>>, &Problem)> = problems
            .iter()
            .map(|problem| (element(&problem.path), problem))
            .collect();
        in_order.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        in_order.dedup_by(|(later, _), (earlier, _)| later.is_some() && later == earlier);
        let mut changed = false;
        for (_, problem) in in_order {
            changed |= take_out(&mut draft, problem);
        }
        if !changed {
            for problem in &problems {
                draft.note("the configuration", problem.to_string());
            }
            toml = text(&draft, source, name);
            break;
        }
    }
    let warnings = draft
        .notes
        .iter()
        .map(|note| format!("{}: {}", note.what, note.why));
    Migration {
        source,
        toml,
        warnings: warnings.collect(),
    }
}

/// List and index of an element with a problem.
type ElementIndex<'a> = (&'a str, usize);

fn element(path: &str) -> Option<ElementIndex<'_>> {
    ["keys", "workers"]
        .into_iter()
        .find_map(|list| Some((list, indexed(path, list)?.0)))
}

/// Changes the number of the admin port if the data port has the same: a data port on every interface takes it on the
/// loopback interface too.
fn keep_ports_apart(draft: &mut ConfigDraft) {
    let port = |key: &str, default: u16| {
        let text = draft.entries.get(key).and_then(|entry| entry.value.as_str());
        text.and_then(|text| text.rsplit(':').next()?.parse().ok())
            .unwrap_or(default)
    };
    let (data, admin) = (port("server.listen", 8080), port("admin.listen", 9090));
    if data == admin && data != 0 {
        let other = data.checked_add(1).unwrap_or(9090);
        let from = draft.entries.get("admin.listen").map(|entry| entry.from.clone());
        let what = from.unwrap_or_else(|| "the admin port".to_owned());
        draft.note(
            &what,
            format!("port {admin} is the data port; admin.listen has port {other}"),
        );
        draft.set("admin.listen", format!("127.0.0.1:{other}"), "a separate port");
    }
}

/// Sets an empty file of workers if the source names none, since a router without workers does not start. Workers can
/// be listed in the file while it serves.
fn without_workers(draft: &mut ConfigDraft, source: Source) {
    if draft.workers.is_empty() && !draft.has("discovery.kubernetes.pods") {
        let why = format!(
            "{source} names none here: list them in workers.toml (docs/discovery.md), or add [[workers]]"
        );
        draft.note("workers", why);
        draft.set("discovery.file.path", "workers.toml", "no workers are named");
    }
}

/// Removes the value with a problem, and notes it. Returns whether there was one.
fn take_out(draft: &mut ConfigDraft, problem: &Problem) -> bool {
    let path = problem.path.as_str();
    let why = match &problem.hint {
        Some(hint) => format!("not carried over: {path}: {}; {hint}", problem.what),
        None => format!("not carried over: {path}: {}", problem.what),
    };
    if let Some((at, key)) = indexed(path, "workers") {
        let every = format!("workers.{key}");
        if draft.entries.contains_key(&every) {
            return remove(draft, &every, why);
        }
        if at < draft.workers.len() {
            let worker = draft.workers.remove(at);
            draft.note(format!("{} {}", worker.from, worker.url), why);
            return true;
        }
        return false;
    }
    if let Some((at, _)) = indexed(path, "keys").filter(|(at, _)| *at < draft.keys.len()) {
        let key = draft.keys.remove(at);
        draft.note(key.from, why);
        return true;
    }
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    if section == "discovery.worker" && draft.entries.contains_key(&format!("workers.{key}")) {
        return remove(draft, &format!("workers.{key}"), why);
    }
    if draft.entries.contains_key(path) {
        return remove(draft, path, why);
    }
    // Half of a pair, such as a certificate without its key.
    let sibling = match key {
        "key_file" => format!("{section}.cert_file"),
        "cert_file" => format!("{section}.key_file"),
        _ => return false,
    };
    draft.entries.contains_key(&sibling) && remove(draft, &sibling, why)
}

fn remove(draft: &mut ConfigDraft, key: &str, why: String) -> bool {
    let Some(entry) = draft.entries.remove(key) else {
        return false;
    };
    draft.note(entry.from, why);
    true
}

/// Splits a path such as `workers[3].url` into index and key.
fn indexed<'a>(path: &'a str, list: &str) -> Option<(usize, &'a str)> {
    let (at, key) = path.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
    Some((at.parse().ok()?, key.trim_start_matches('.')))
}

fn text(draft: &ConfigDraft, source: Source, name: &str) -> String {
    let mut text = format!(
        "# Written by `tailroute migrate` from {} ({source}).\n\
         # Above each key stands what it comes from; the end lists what has no equivalent.\n\
         # Next: `tailroute check FILE`, and `gpu-bench worker URL` to measure each worker.\n",
        crate::given::printable(name)
    );
    let mut rest: Vec<&str> = draft
        .entries
        .keys()
        .filter_map(|key| key.rsplit_once('.'))
        .map(|(section, _)| section)
        .filter(|section| !SECTIONS.contains(section) && *section != "workers")
        .collect();
    rest.dedup();
    for section in SECTIONS.iter().copied().chain(rest) {
        self::section(&mut text, draft, section, section);
        match section {
            "admin" => draft
                .workers
                .iter()
                .for_each(|worker| self::worker(&mut text, draft, worker)),
            "discovery.file" if draft.has("discovery.kubernetes.pods") => {
                self::section(&mut text, draft, "workers", "discovery.worker");
            }
            "admission" => keys(&mut text, draft),
            _ => {}
        }
    }
    text.push_str(policy_advice(draft));
    notes(
        &mut text,
        "Without an equivalent, or with another effect:",
        &draft.notes,
    );
    notes(&mut text, "Built in, with nothing to set:", &draft.built_in);
    text
}

/// Returns a comment that names the routing policy, and how to try `tail` if it is another one.
fn policy_advice(draft: &ConfigDraft) -> &'static str {
    match draft
        .entries
        .get("routing.policy")
        .map(|entry| entry.value.as_str())
    {
        None | Some(Some("tail")) => "\n# routing.policy is left at tailroute's own rule, `tail`.\n",
        Some(_) => {
            "\n# routing.policy keeps the other router's rule. `tail` weighs a cached prefix against load in predicted\n\
             # milliseconds instead of by thresholds. To compare it on live traffic without routing by it:\n\
             # `tailroute ctl policy shadow-set policy=tail --reason compare` (docs/admin.md).\n"
        }
    }
}

fn notes(text: &mut String, title: &str, notes: &[DraftNote]) {
    if notes.is_empty() {
        return;
    }
    text.push_str(&format!("\n# {title}\n"));
    for note in notes {
        let line = format!("# - {}: {}", note.what, note.why);
        text.push_str(&line.replace(char::is_control, " "));
        text.push('\n');
    }
}

fn section(text: &mut String, draft: &ConfigDraft, section: &str, title: &str) {
    let entries = draft.entries.iter();
    let mut entries = entries
        .filter(|(key, _)| key.rsplit_once('.').is_some_and(|(of, _)| of == section))
        .peekable();
    if entries.peek().is_some() {
        text.push_str(&format!("\n[{title}]\n"));
    }
    for (key, entry) in entries {
        self::entry(text, key, &entry.value, &entry.from);
    }
}

fn entry(text: &mut String, key: &str, value: &Value, from: &str) {
    let key = key.rsplit('.').next().unwrap_or(key);
    text.push_str(&format!("# {from}\n{key} = {value}\n"));
}

fn worker(text: &mut String, draft: &ConfigDraft, worker: &DraftWorker) {
    text.push_str(&format!("\n# {}\n[[workers]]\n", worker.from));
    text.push_str(&format!("url = {}\n", Value::from(worker.url.as_str())));
    if !worker.models.is_empty() {
        text.push_str(&format!("models = {}\n", Value::from(worker.models.clone())));
    }
    for (key, entry) in draft
        .entries
        .iter()
        .filter(|(key, _)| key.starts_with("workers."))
    {
        self::entry(text, key, &entry.value, &entry.from);
    }
}

fn keys(text: &mut String, draft: &ConfigDraft) {
    for key in &draft.keys {
        let name = Value::from(key.name.as_str());
        text.push_str(&format!(
            "\n# {}\n[[keys]]\nname = {name}\nsha256 = \"{}\"\n",
            key.from, key.sha256
        ));
    }
}
