//! What is wrong with a configuration, said so that it can be put right without reading anything else.

use std::fmt;

use serde::Serialize;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// In the file, at a line and a column that both count from 1.
    File {
        /// The file's name as it was given.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// In a variable of the environment.
    Environment {
        /// The variable's name.
        name: String,
    },
    /// In a flag of the command line.
    Flag {
        /// The flag, with its dashes.
        name: String,
    },
    /// In the query of a request.
    Query {
        /// The parameter's name.
        name: String,
    },
    /// Nowhere: a default, or something that is missing altogether.
    Nowhere,
}

impl Origin {
    /// Whether values from here are text that still has to be read as what the key expects.
    pub(crate) fn is_text(&self) -> bool {
        matches!(
            self,
            Self::Environment { .. } | Self::Flag { .. } | Self::Query { .. }
        )
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Environment { name } => write!(f, "environment variable {name}"),
            Self::Flag { name } => write!(f, "flag {name}"),
            Self::Query { name } => write!(f, "query parameter {name}"),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// The key, such as `workers[1].url`; empty where the text could not be read as TOML at all.
    pub path: String,
    /// What is wrong and what was expected.
    pub what: String,
    /// The likely remedy, where there is one.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Most problems that are told one by one: nobody mends more at a time, and a document may come from anybody.
const TOLD: usize = 32;
/// Most characters that are shown of a key that nobody knows.
const SHOWN: usize = 128;

/// What is wrong, in the order in which it was found. Never empty when returned as an error. After the first 32 there is
/// one more that says how many others there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems {
    told: Vec<Problem>,
    #[serde(skip)]
    more: usize,
}

impl Problems {
    /// The problems, one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.told.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Notes a problem, unless the same key, or the section it stands in, has been reported already: a worker that is
    /// no table is one mistake, and that it therefore has no url is not a second one.
    pub(crate) fn push(&mut self, problem: Problem) {
        let covered = self
            .told
            .iter()
            .any(|earlier| !earlier.path.is_empty() && covers(&earlier.path, &problem.path));
        if covered {
            return;
        }
        if !self.is_full() {
            self.told.push(problem);
            return;
        }
        self.more += 1;
        self.told.truncate(TOLD);
        self.told.push(Problem {
            origin: Origin::Nowhere,
            path: String::new(),
            what: format!("and {} more", self.more),
            hint: None,
        });
    }

    /// Whether no more will be told than how many more there are: what it takes to put them well can be spared.
    pub(crate) fn is_full(&self) -> bool {
        self.told.len() >= TOLD
    }
}

/// A key as it is shown, however long it is.
pub(crate) fn shortened(path: String) -> String {
    match path.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path,
    }
}

/// Whether `outer` is `inner` or a section that `inner` stands in.
fn covers(outer: &str, inner: &str) -> bool {
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.told.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
