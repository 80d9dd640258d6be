//! Reads the directives of an nginx configuration, with their lines.

use crate::error::Error;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directive {
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) line: usize,
    pub(crate) block: Option<Vec<Directive>>,
}

const DEEPEST: usize = 16;

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    End,
    Open,
    Close,
}

pub(crate) fn directives(name: &str, text: &str) -> Result<Vec<Directive>, Error> {
    let wrong = |line: usize, what: &str| Error::wrong(format!("{name}:{line}"), what);
    // The blocks that are open, each with the directive that opened it; the first is the file itself.
    let mut open: Vec<(Directive, Vec<Directive>)> = vec![(Directive::default(), Vec::new())];
    let mut words: Vec<String> = Vec::new();
    let mut begun = 1;
    for (token, line) in tokens(name, text)? {
        match token {
            Token::Word(word) => {
                if words.is_empty() {
                    begun = line;
                }
                words.push(word);
            }
            Token::End => {
                let directive =
                    directive(&mut words, begun).ok_or_else(|| wrong(line, "`;` without a directive"))?;
                push(&mut open, directive);
            }
            Token::Open => {
                let directive =
                    directive(&mut words, begun).ok_or_else(|| wrong(line, "`{` without a directive"))?;
                if open.len() > DEEPEST {
                    return Err(wrong(line, "blocks are nested too deeply"));
                }
                open.push((directive, Vec::new()));
            }
            Token::Close => {
                if !words.is_empty() {
                    return Err(wrong(begun, &format!("{}: expected `;` at its end", words[0])));
                }
                let closed = if open.len() > 1 { open.pop() } else { None };
                let (mut directive, block) = closed.ok_or_else(|| wrong(line, "`}` without `{`"))?;
                directive.block = Some(block);
                push(&mut open, directive);
            }
        }
    }
    if !words.is_empty() {
        return Err(wrong(begun, &format!("{}: expected `;` at its end", words[0])));
    }
    match (open.pop(), open.pop()) {
        (Some((_, directives)), None) => Ok(directives),
        (Some((directive, _)), _) => Err(wrong(
            directive.line,
            &format!("{}: expected `}}` at its end", directive.name),
        )),
        (None, _) => Ok(Vec::new()),
    }
}

fn push(open: &mut [(Directive, Vec<Directive>)], directive: Directive) {
    if let Some((_, block)) = open.last_mut() {
        block.push(directive);
    }
}

fn directive(words: &mut Vec<String>, line: usize) -> Option<Directive> {
    let mut words = std::mem::take(words).into_iter();
    Some(Directive {
        name: words.next()?,
        args: words.collect(),
        line,
        block: None,
    })
}

fn tokens(name: &str, text: &str) -> Result<Vec<(Token, usize)>, Error> {
    let mut tokens = Vec::new();
    let mut letters = text.chars().peekable();
    let mut line = 1;
    while let Some(letter) = letters.next() {
        match letter {
            '\n' => line += 1,
            _ if letter.is_whitespace() => {}
            '#' => while letters.next_if(|letter| *letter != '\n').is_some() {},
            ';' => tokens.push((Token::End, line)),
            '{' => tokens.push((Token::Open, line)),
            '}' => tokens.push((Token::Close, line)),
            '"' | '\'' => {
                let (begun, mut word) = (line, String::new());
                loop {
                    match letters.next() {
                        Some(end) if end == letter => break,
                        Some('\\') => escaped(&mut word, letters.next()),
                        Some(other) => {
                            line += usize::from(other == '\n');
                            word.push(other);
                        }
                        None => return Err(Error::wrong(format!("{name}:{begun}"), "a quote is not closed")),
                    }
                }
                tokens.push((Token::Word(word), begun));
            }
            _ => {
                let mut word = String::from(letter);
                while let Some(next) = letters.peek().copied() {
                    // `${name}` is a variable, not a block.
                    let variable = next == '{' && word.ends_with('$');
                    if next.is_whitespace() || next == ';' || (next == '{' && !variable) {
                        break;
                    }
                    if next == '}' && !word.contains("${") {
                        break;
                    }
                    letters.next();
                    word.push(next);
                    if next == '\\' {
                        word.extend(letters.next_if(|letter| !letter.is_whitespace()));
                    }
                }
                tokens.push((Token::Word(word), line));
            }
        }
    }
    Ok(tokens)
}

/// Adds the text that a backslash and the next letter stand for within quotes.
fn escaped(word: &mut String, letter: Option<char>) {
    match letter {
        Some('n') => word.push('\n'),
        Some('r') => word.push('\r'),
        Some('t') => word.push('\t'),
        Some(quote @ ('"' | '\'' | '\\')) => word.push(quote),
        other => {
            word.push('\\');
            word.extend(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_quotes_comments_and_variables_are_read_with_their_lines() {
        let text =
            "# c\nhttp { # d\n  server_name \"a b\" ${x}y;\n  location ~ ^/v1/ { return 200 'o;k'; }\n}\n";
        let read = directives("n", text).unwrap();
        let http = read[0].block.as_ref().unwrap();
        assert_eq!(
            (http[0].args.clone(), http[0].line),
            (vec!["a b".to_owned(), "${x}y".to_owned()], 3)
        );
        assert_eq!(http[1].args, ["~", "^/v1/"]);
        assert_eq!(http[1].block.as_ref().unwrap()[0].args, ["200", "o;k"]);
    }

    #[test]
    fn mistakes_are_errors_that_name_the_line() {
        for (text, expected) in [
            ("a {\n b c\n}", "n:2: b: expected `;` at its end"),
            ("a;\nb {", "n:2: b: expected `}` at its end"),
            ("a;\n}", "n:2: `}` without `{`"),
            ("\n'a", "n:2: a quote is not closed"),
            (";", "n:1: `;` without a directive"),
            ("a\nb", "n:1: a: expected `;` at its end"),
        ] {
            assert_eq!(directives("n", text).unwrap_err().to_string(), expected);
        }
        let deep = "a {".repeat(100);
        assert!(
            directives("n", &deep)
                .unwrap_err()
                .to_string()
                .contains("too deeply")
        );
    }
}
