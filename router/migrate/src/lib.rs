//! Translates the configuration of another router into a `tailroute.toml`.
//!
//! ```text
//! words, script ──▶ shell ───┐
//! YAML ───────────▶ manifest ┼─▶ options ─▶ table of the source ─▶ ConfigDraft ─▶ render ─▶ TOML text
//! nginx.conf ─────▶ nginx ───┘            (key │ no equivalent)                  (loaded by `config`)
//! ```
//!
//! Each source has one table, an [`OptionRow`](table::OptionRow) per flag or directive: the keys of tailroute that
//! it becomes, or the reason why there are none. Options that are in no table are reported too. [`render`] loads
//! its own output: a value that tailroute refuses is taken out again and reported with the reason. Secrets never
//! reach the output: keys of clients are written as hashes, and all other secret values are left out.

mod compose;
mod draft;
mod error;
mod family;
#[cfg(test)]
mod generated;
mod given;
mod manifest;
mod nginx;
mod options;
mod production_stack;
mod reference;
mod render;
mod sglang;
mod shell;
mod source;
mod table;
mod variables;
mod vllm_router;
mod workers;

use std::borrow::Cow;

pub use error::Error;
pub use reference::{options, reference};
pub use source::Source;

use draft::ConfigDraft;
use options::Command;

/// Size in bytes of the longest input.
pub const MOST_BYTES: u64 = 1 << 20;

/// Input of a translation.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A command line, word by word.
    Words(&'a [String]),
    /// The text of a file: a command line, a YAML manifest or an nginx configuration.
    Text {
        /// Name of the file, for messages.
        name: &'a str,
        text: &'a str,
    },
}

/// A translated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Router that the input belongs to.
    pub source: Source,
    /// Text of a `tailroute.toml`.
    pub toml: String,
    /// Options that have no equivalent or another effect, a line each with the reason.
    pub warnings: Vec<String>,
}

/// Returns the nginx configuration that the file is, or contains as a ConfigMap.
fn nginx_in<'a>(name: &'a str, text: &'a str, from: Option<Source>) -> Result<Option<NginxFile<'a>>, Error> {
    let whole = || (Cow::Borrowed(name), Cow::Borrowed(text));
    match from {
        None if !manifest::looks_like(text) => Ok(nginx::looks_like(text).then(whole)),
        None | Some(Source::Nginx) => {
            let within = manifest::nginx(name, text)?;
            let within = within.map(|(file, text)| (Cow::Owned(file), Cow::Owned(text)));
            Ok(within.or_else(|| from.is_some().then(whole)))
        }
        Some(_) => Ok(None),
    }
}

/// Name and text of an nginx configuration.
type NginxFile<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Translates `input`; `from` overrides the detection of its router. Fails if the input is too long, belongs to no
/// known router, or cannot be understood; the error names the line or the flag.
pub fn migrate(input: Input<'_>, from: Option<Source>) -> Result<Migration, Error> {
    let length = match input {
        Input::Words(words) => words.iter().map(|word| word.len() + 1).sum(),
        Input::Text { text, .. } => text.len(),
    };
    if length as u64 > MOST_BYTES {
        return Err(Error::TooLong);
    }
    let (command, name) = match input {
        Input::Words(words) => (Command::of_words(words.to_vec()), "a command line"),
        Input::Text { name, text } => {
            if let Some((file, text)) = nginx_in(name, text, from)? {
                return Ok(render::finished(nginx::read(&file, &text)?, Source::Nginx, name));
            }
            let command = match manifest::read(name, text, from)? {
                Some(command) => command,
                None => shell::command(name, text, from)?,
            };
            (command, name)
        }
    };
    let source = match from {
        Some(Source::Nginx) => return Err(Error::NotNginx),
        Some(from) => from,
        None => command.source().ok_or(Error::Unknown)?,
    };
    let mut draft = ConfigDraft::default();
    command.translate(source, &mut draft)?;
    Ok(render::finished(draft, source, name))
}
