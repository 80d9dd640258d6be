//! Translates command lines: the program, and its flags by the tables of a source.

use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::given::{ParsedOption, printable};
use crate::source::Source;
use crate::table::{OptionRow, Takes};
use crate::variables::is_open;
use crate::workers;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) program: Option<Program>,
    pub(crate) words: Vec<String>,
    pub(crate) place: String,
    /// Properties of a manifest that are no flags, each with the reason why it has no equivalent.
    pub(crate) beside: Vec<(String, &'static str)>,
    /// Name of the variable or value that holds a key for the workers, for messages, if there is one.
    pub(crate) key_variable: Option<&'static str>,
}

/// A program, as far as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Of(Source),
    /// The launcher of sglang-router, which starts workers too.
    SglangLauncher,
    /// `vllm-router`: two projects install a program of this name.
    VllmRouter,
}

const PROGRAMS: &[(&str, Program)] = &[
    ("sglang_router.launch_router", Program::Of(Source::SglangRouter)),
    ("sglang_router.launch_server", Program::SglangLauncher),
    ("sglang_router", Program::Of(Source::SglangRouter)),
    ("sglang-router", Program::Of(Source::SglangRouter)),
    ("sgl-router", Program::Of(Source::SglangRouter)),
    ("sgl-model-gateway", Program::Of(Source::SglangRouter)),
    ("shepherd-model-gateway", Program::Of(Source::SglangRouter)),
    ("smg.launch_router", Program::Of(Source::SglangRouter)),
    ("smg", Program::Of(Source::SglangRouter)),
    ("amg", Program::Of(Source::SglangRouter)),
    ("vllm_router.launch_router", Program::Of(Source::VllmRouter)),
    ("vllm_router.app", Program::Of(Source::ProductionStack)),
    ("vllm_router.router", Program::Of(Source::ProductionStack)),
    ("lmstack-router", Program::Of(Source::ProductionStack)),
    ("vllm-router", Program::VllmRouter),
];

/// Subcommands that may stand between the program and its flags.
const SUBCOMMANDS: &[&str] = &["launch", "start", "serve"];

/// Returns the program that a word names: a module, a path, or an image with its tag.
pub(crate) fn program(word: &str) -> Option<Program> {
    let base = word.rsplit('/').next().unwrap_or(word);
    let base = base.split(['@', ':']).next().unwrap_or(base);
    let named = |(name, _): &&(&str, Program)| *name == base;
    PROGRAMS.iter().find(named).map(|(_, program)| *program)
}

impl Command {
    /// Separates the program from its flags. Words before the program, such as the interpreter, are dropped.
    pub(crate) fn of_words(words: Vec<String>) -> Self {
        // A flag's value may be named like a program.
        let first_flag = words.iter().position(|word| word.starts_with("--"));
        let before = &words[..first_flag.unwrap_or(words.len())];
        let found = before.iter().rposition(|word| program(word).is_some());
        let Some(at) = found.or_else(|| after_other_flags(&words)) else {
            return Self {
                words,
                ..Self::default()
            };
        };
        let found = program(&words[at]);
        let mut rest = words;
        rest.drain(..=at);
        if rest
            .first()
            .is_some_and(|word| SUBCOMMANDS.contains(&word.as_str()))
        {
            rest.remove(0);
        }
        Self {
            program: found,
            words: rest,
            ..Self::default()
        }
    }

    /// Returns the router that the command line is for, by the program, else by the flags.
    pub(crate) fn source(&self) -> Option<Source> {
        match self.program {
            Some(Program::Of(source)) => return Some(source),
            Some(Program::SglangLauncher) => return Some(Source::SglangRouter),
            Some(Program::VllmRouter) => {
                let candidates = [Source::VllmRouter, Source::ProductionStack];
                return candidates.into_iter().min_by_key(|source| self.unknown(*source));
            }
            None => {}
        }
        let candidates = [Source::SglangRouter, Source::VllmRouter, Source::ProductionStack];
        let best = candidates
            .into_iter()
            .min_by_key(|source| self.unknown(*source))?;
        (self.unknown(best) < self.flags().count()).then_some(best)
    }

    pub(crate) fn fits(&self, source: Source) -> bool {
        self.unknown(source) < self.flags().count()
    }

    fn flags(&self) -> impl Iterator<Item = &str> {
        let flags = self.words.iter().filter(|word| is_flag(word));
        flags.map(|word| word.split('=').next().unwrap_or(word))
    }

    fn unknown(&self, source: Source) -> usize {
        self.flags().filter(|name| row(source, name).is_none()).count()
    }

    pub(crate) fn translate(self, source: Source, draft: &mut ConfigDraft) -> Result<(), Error> {
        let mut words = self.words.into_iter().peekable();
        while let Some(word) = words.next() {
            if !is_flag(&word) {
                let what = "expected a flag; several values go to one flag only where it takes a list";
                return Err(Error::wrong(format!("argument {:?}", printable(&word)), what));
            }
            let (name, inline) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let row = row(source, &name);
            let takes = row.map_or(Takes::Any, |row| row.takes);
            let mut given = ParsedOption {
                secret: row.map_or_else(|| sounds_secret(&name), |row| row.secret),
                name,
                values: inline.into_iter().collect(),
                line: None,
            };
            let mut room = match takes {
                Takes::Nothing => 0,
                Takes::One => 1 - given.values.len(),
                Takes::Any if given.values.is_empty() => usize::MAX,
                Takes::Any => 0,
            };
            while room > 0
                && let Some(value) = words.next_if(|word| !is_flag(word))
            {
                given.values.push(value);
                room -= 1;
            }
            match row {
                Some(row) => {
                    if let Some(given) = without_variables(row, given, draft) {
                        checked(row, given, draft)?;
                    }
                }
                None if self.program == Some(Program::SglangLauncher) => {
                    let why =
                        "for the workers that this command starts too: start each of them with its flags";
                    draft.note(given.shown(), why);
                }
                None => {
                    let why = format!("not a flag of {source} that is known here; see docs/configuration.md");
                    draft.note(given.shown(), why);
                }
            }
        }
        if let Some(variable) = self.key_variable {
            workers::note_key_of_workers(draft, variable);
        }
        for (what, why) in self.beside {
            draft.note(what, why);
        }
        source.finish(draft)
    }
}

/// Removes values that are variables without a value, and notes them; `None` if nothing remains.
fn without_variables(
    row: &OptionRow,
    mut given: ParsedOption,
    draft: &mut ConfigDraft,
) -> Option<ParsedOption> {
    if row.secret || !row.is_carried() || !given.values.iter().any(|value| is_open(value)) {
        return Some(given);
    }
    let why = "a variable that has no value here: write the value into the configuration";
    draft.note(given.shown(), why);
    given.values.retain(|value| !is_open(value));
    (!given.values.is_empty()).then_some(given)
}

fn checked(row: &OptionRow, given: ParsedOption, draft: &mut ConfigDraft) -> Result<(), Error> {
    match (row.takes, given.values.len()) {
        (Takes::Nothing, 1..) => Err(Error::wrong(given.place(), "takes no value")),
        (Takes::One, 0) => Err(Error::wrong(given.place(), "expected a value")),
        _ => row.apply(given, draft),
    }
}

/// Returns the position of a program after flags of another one, as in `docker run --gpus all IMAGE --port 80`.
fn after_other_flags(words: &[String]) -> Option<usize> {
    let runs_another = words.first().is_some_and(|word| !is_flag(word));
    let found = words.iter().rposition(|word| program(word).is_some());
    found.filter(|_| runs_another)
}

/// Returns the row of a flag. `sglang_router.launch_server` prefixes the router's flags with `--router-`.
fn row(source: Source, name: &str) -> Option<&'static OptionRow> {
    let with_prefix = || {
        let bare = name.strip_prefix("--router-").map(|bare| format!("--{bare}"));
        bare.and_then(|bare| source.row(&bare))
    };
    source.row(name).or_else(with_prefix)
}

/// Returns whether a word is a flag rather than a value, which may be a negative number.
pub(crate) fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err()
}

fn sounds_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["key", "token", "secret", "passw", "dsn", "credential"]
        .iter()
        .any(|part| name.contains(part))
}
