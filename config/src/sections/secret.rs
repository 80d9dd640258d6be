use std::path::Path;

use super::checker::Checker;

const LONGEST_KEY: usize = 4_096;
/// Size in bytes of the longest file with a secret, including white space.
const LONGEST_KEY_FILE: u64 = 64 << 10;

/// A value that must not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(std::sync::Arc<str>);

impl Secret {
    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Reads the secret in a file: one line of visible ASCII. Problems do not quote the contents, since they may be secret.
pub(crate) fn secret(file: &Path, path: &str, checker: &mut Checker<'_>) -> Option<Secret> {
    let name = file.display();
    match crate::file::read_text(file, LONGEST_KEY_FILE) {
        Err(error) => checker.report(path, format!("{name} cannot be read: {error}"), None),
        Ok(text) => {
            let key = text.trim();
            if !key.is_empty() && key.len() <= LONGEST_KEY && key.bytes().all(|byte| byte.is_ascii_graphic())
            {
                return Some(Secret(key.into()));
            }
            let what = format!("{name} holds no key: expected one line of visible ASCII without spaces");
            checker.report(path, what, None);
        }
    }
    None
}
