//! Adds workers and keys, as sources write them, to a draft.

use aws_lc_rs::digest;

use crate::draft::{ConfigDraft, DraftKey, DraftWorker};
use crate::given::{ParsedOption, printable};

const MOST_WORKERS: usize = 4_096;

/// Adds a worker by its url, or its models to the worker that has this url already.
pub(crate) fn add(draft: &mut ConfigDraft, url: &str, models: &[&str], from: &str) {
    let written = url.trim();
    let url = match written.split_once("://") {
        Some(("http" | "https", _)) => written.to_owned(),
        Some(("grpc" | "grpcs" | "zmq" | "tcp" | "ipc", _)) => {
            let why = "only HTTP workers are supported; name the engine's HTTP server";
            draft.note(format!("{from}: {written}"), why);
            return;
        }
        Some(_) => written.to_owned(),
        None => format!("http://{written}"),
    };
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix("/v1").unwrap_or(url).to_owned();
    let models = models.iter().map(|model| (*model).to_owned());
    if let Some(earlier) = draft.workers.iter_mut().find(|worker| worker.url == url) {
        for model in models {
            if !earlier.models.contains(&model) {
                earlier.models.push(model);
            }
        }
        return;
    }
    if draft.workers.len() >= MOST_WORKERS {
        let what = format!("workers beyond the first {MOST_WORKERS}");
        draft.note(what, "list them in a file (discovery.file)");
        return;
    }
    draft.workers.push(DraftWorker {
        url,
        models: models.collect(),
        from: printable(from),
    });
}

pub(crate) fn add_all(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    for url in given.list() {
        add(draft, url, &[], &given.name);
    }
    Ok(())
}

/// Length of the shortest key whose hash does not give it away.
const SHORTEST_KEY: usize = 20;
const LONGEST_NAME: usize = 64;

pub(crate) fn add_key(draft: &mut ConfigDraft, name: &str, key: &str, from: &str) -> Result<(), String> {
    let (name, key) = (name.trim(), key.trim());
    if key.is_empty() {
        return Err("expected a key".to_owned());
    }
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !fits {
        return Err("expected a name of 1 to 64 visible ASCII characters before the key".to_owned());
    }
    if key.len() < SHORTEST_KEY {
        let why = "the key is so short that its hash gives it away; replace it by one of `tailroute key new`";
        draft.note(format!("{from} {name}"), why);
    }
    let digest = digest::digest(&digest::SHA256, key.as_bytes());
    let sha256: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    draft
        .keys
        .retain(|earlier| earlier.name != name && earlier.sha256 != sha256);
    draft.keys.push(DraftKey {
        name: name.to_owned(),
        sha256,
        from: format!("{from} …"),
    });
    Ok(())
}

/// Notes a key that workers require: it belongs in a file, which is not written here.
pub(crate) fn note_key_of_workers(draft: &mut ConfigDraft, from: &str) {
    let why = "a key that workers require goes into a separate file: name it in `api_key_file` of [[workers]] or [discovery.worker]";
    draft.note(from, why);
}
