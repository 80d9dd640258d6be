//! The member `prompt` of a completion: a text, a list of token ids, or a list of one of these. Larger batches have no
//! fingerprint.

use policy::fingerprint::Pieces;

use super::{Completion, Hashed};
use crate::json::{Malformed, Scanner};

pub(super) fn prompt(
    scanner: &mut Scanner<'_>,
    text: &mut Pieces,
    tokens: &mut Vec<u32>,
) -> Result<Completion, Malformed> {
    if scanner.peek() != Some(b'[') {
        return single(scanner, text, tokens);
    }
    // Lists of ids are the most common, so they are tried first.
    let start = scanner.clone();
    if ids(scanner, tokens)? {
        return Ok(Completion::Tokens);
    }
    *scanner = start;
    let (mut count, mut found) = (0, Completion::None);
    scanner.array(|scanner| {
        count += 1;
        if count > 1 {
            return scanner.skip().map(drop);
        }
        found = single(scanner, text, tokens)?;
        Ok(())
    })?;
    Ok(if count == 1 { found } else { Completion::None })
}

fn single(
    scanner: &mut Scanner<'_>,
    text: &mut Pieces,
    tokens: &mut Vec<u32>,
) -> Result<Completion, Malformed> {
    match scanner.peek() {
        Some(b'"') => {
            text.begin_prompt();
            scanner.string(&mut Hashed(text))?;
            Ok(Completion::Text)
        }
        Some(b'[') if ids(scanner, tokens)? => Ok(Completion::Tokens),
        _ => scanner.skip().map(|_| Completion::None),
    }
}

/// Reads a list of token ids. Returns false for any other value, with the scanner before it.
fn ids(scanner: &mut Scanner<'_>, tokens: &mut Vec<u32>) -> Result<bool, Malformed> {
    let start = scanner.clone();
    tokens.clear();
    let mut only_ids = true;
    scanner.array(|scanner| {
        // After one element of another kind all are skipped.
        if only_ids && let Some(id) = scanner.id() {
            tokens.push(id);
            return Ok(());
        }
        only_ids = false;
        scanner.skip().map(drop)
    })?;
    only_ids &= !tokens.is_empty();
    if !only_ids {
        tokens.clear();
        *scanner = start;
    }
    Ok(only_ids)
}
