//! Reads command lines in the text of a script.

use crate::error::Error;
use crate::options::{Command, is_flag};
use crate::source::Source;
use crate::variables::Variables;

const MOST_LINES: usize = 1_000;

const SHELLS: &[&str] = &["sh", "bash", "ash", "dash"];

const ENDS: &[&str] = &[
    "|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>>", "2>&1", "&>",
];

/// Returns the only command of a script that starts a router.
pub(crate) fn command(name: &str, text: &str, from: Option<Source>) -> Result<Command, Error> {
    let mut found: Option<(usize, Command)> = None;
    let mut flags: Option<(usize, Vec<String>)> = None;
    for (number, words) in commands(name, text)? {
        if words.first().is_some_and(|word| is_flag(word)) {
            let (_, all) = flags.get_or_insert((number, Vec::new()));
            all.extend(words);
            continue;
        }
        if words.iter().any(|word| word == "install" || word == "pull") {
            continue;
        }
        let command = Command::of_words(words);
        if command.program.is_none() {
            continue;
        }
        if let Some((first, _)) = &found {
            return Err(Error::Several {
                first: format!("{name}:{first}"),
                second: format!("{name}:{number}"),
            });
        }
        found = Some((number, command));
    }
    // Flags on lines of their own, without a program.
    let bare = flags.map(|(number, words)| {
        (
            number,
            Command {
                words,
                ..Command::default()
            },
        )
    });
    let bare = bare.filter(|(_, command)| from.is_some() || command.source().is_some());
    let (number, mut command) = found.or(bare).ok_or(Error::Unknown)?;
    command.place = format!("{name}:{number}");
    Ok(command)
}

/// Returns the words of each command, with the number of its first line. For `sh -c SCRIPT` they are those of the
/// script's commands.
fn commands(name: &str, text: &str) -> Result<Vec<(usize, Vec<String>)>, Error> {
    let mut commands = Vec::new();
    let mut variables = Variables::default();
    for (number, words) in lines(name, text)? {
        if variables.set(&words) {
            continue;
        }
        let words: Vec<String> = words.iter().map(|word| variables.expanded(word)).collect();
        match script(&words) {
            Some(text) => commands.extend(lines(name, text)?.into_iter().map(|(_, words)| (number, words))),
            None => commands.push((number, words)),
        }
    }
    Ok(commands)
}

/// Returns the script of `sh -c SCRIPT`, which may stand behind another program.
pub(crate) fn script(words: &[String]) -> Option<&str> {
    let is_shell = |word: &String| SHELLS.contains(&word.rsplit('/').next().unwrap_or(word));
    let at = words.iter().position(is_shell)?;
    let flag = words
        .get(at + 1..)?
        .iter()
        .position(|word| word.starts_with('-') && word.ends_with('c'))?;
    words.get(at + flag + 2).map(String::as_str)
}

/// Returns the words of each line, with the number of its first one.
fn lines(name: &str, text: &str) -> Result<Vec<(usize, Vec<String>)>, Error> {
    let mut commands = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start();
        let unit = ["ExecStart=", "Environment="];
        let bare = unit.iter().find_map(|key| line.strip_prefix(key));
        let mut command = bare.unwrap_or(line).to_owned();
        let mut count = 1;
        let mut words = loop {
            let continues = !line.starts_with('#') && is_continued(&command);
            let split = if continues { None } else { shlex::split(&command) };
            if let Some(words) = split {
                break words;
            }
            let next = lines.next().filter(|_| count < MOST_LINES);
            let Some((_, next)) = next else {
                let what = "a quote or a `\\` at the end of the line is not closed";
                return Err(Error::wrong(format!("{name}:{number}"), what));
            };
            if continues {
                command.truncate(command.trim_end().len().saturating_sub(1));
                command.push(' ');
            } else {
                command.push('\n');
            }
            command.push_str(next);
            count += 1;
        };
        if let Some(end) = words.iter().position(|word| ends(word)) {
            words.truncate(end);
        }
        if let Some(last) = words.last_mut().filter(|last| last.ends_with(';')) {
            last.pop();
        }
        if !words.is_empty() {
            commands.push((number, words));
        }
    }
    Ok(commands)
}

fn ends(word: &str) -> bool {
    ENDS.contains(&word) || word.starts_with(">/") || word.starts_with("2>/")
}

/// Returns whether the text ends in a backslash that is not itself escaped.
fn is_continued(text: &str) -> bool {
    let slashes = text.trim_end_matches(['\r', ' ']).bytes().rev();
    slashes.take_while(|byte| *byte == b'\\').count() % 2 == 1
}
