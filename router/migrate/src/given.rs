//! An option as it was given, with its values.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedOption {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    /// File and line, if the option is a directive.
    pub(crate) line: Option<String>,
    /// Whether the values must not be shown.
    pub(crate) secret: bool,
}

/// Largest number of characters shown of an option.
const SHOWN: usize = 160;

impl ParsedOption {
    pub(crate) fn place(&self) -> String {
        match &self.line {
            Some(line) => format!("{line}: {}", printable(&self.name)),
            None => format!("flag {}", printable(&self.name)),
        }
    }

    /// Returns the option for comments and messages, without secrets.
    pub(crate) fn shown(&self) -> String {
        let mut text = self.name.clone();
        if self.secret {
            text.push_str(" …");
        } else {
            for value in &self.values {
                text.push(' ');
                text.push_str(&without_credentials(value));
            }
        }
        let text = printable(&text);
        match &self.line {
            Some(line) => format!("{line}: {text}"),
            None => text,
        }
    }

    /// Returns the value; the last one, if there are several.
    pub(crate) fn one(&self) -> Result<&str, String> {
        let last = self.values.last().map(|value| value.trim());
        last.filter(|value| !value.is_empty())
            .ok_or_else(|| "expected a value".to_owned())
    }

    pub(crate) fn first(&self) -> &str {
        self.values.first().map_or("", |value| value.trim())
    }

    pub(crate) fn number(&self) -> Result<f64, String> {
        let text = self.one()?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("expected a number, found {:?}", self.quotable(text)))
    }

    pub(crate) fn integer(&self) -> Result<i64, String> {
        let text = self.one()?;
        text.parse()
            .map_err(|_| format!("expected an integer, found {:?}", self.quotable(text)))
    }

    /// Returns the values, each split at commas and spaces.
    pub(crate) fn list(&self) -> Vec<&str> {
        self.values
            .iter()
            .flat_map(|value| value.split([',', ' ', '\n', '\t']))
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .collect()
    }

    fn quotable(&self, text: &str) -> String {
        if self.secret {
            "…".to_owned()
        } else {
            printable(text)
        }
    }
}

/// Returns the text in one line of bounded length, as a comment can hold it.
pub(crate) fn printable(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(SHOWN)
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Replaces the credentials in a url by an ellipsis.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find(['/', ',', ' ', '?']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://…{}", &rest[at..]),
        None => text.to_owned(),
    }
}
