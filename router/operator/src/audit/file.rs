//! A file of entries, one per line, with one earlier file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file of lines, checked before each write: another router or log rotation may have written to it or moved it.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    max_bytes: u64,
    file: File,
    /// Whether the file may end with half a line, so that the next one must start on a new line.
    is_torn: bool,
}

impl AuditFile {
    pub(super) fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            max_bytes,
            file: append_to(path)?,
            is_torn: true,
        })
    }

    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut length = self.find_again()?.len();
        if length > 0 && length + line.len() as u64 > self.max_bytes {
            self.rotate()?;
            length = 0;
        }
        let is_torn = std::mem::replace(&mut self.is_torn, true);
        let mut whole = Vec::with_capacity(line.len() + 1);
        if is_torn && length > 0 && !self.ends_a_line()? {
            whole.push(b'\n');
        }
        whole.extend_from_slice(line);
        self.file.write_all(&whole)?;
        self.is_torn = false;
        self.file.sync_data()
    }

    fn find_again(&mut self) -> io::Result<Metadata> {
        let ours = self.file.metadata()?;
        match std::fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(ours),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = append_to(&self.path)?;
        self.is_torn = true;
        self.file.metadata()
    }

    fn rotate(&mut self) -> io::Result<()> {
        match std::fs::rename(&self.path, beside(&self.path, "1")) {
            Ok(()) => {}
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = append_to(&self.path)?;
        Ok(())
    }

    fn ends_a_line(&self) -> io::Result<bool> {
        let mut file = File::open(&self.path)?;
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        Ok(last == *b"\n")
    }
}

/// Returns `audit.jsonl.1` for `audit.jsonl`.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Opens the file, readable by its owner only, since it names people.
fn append_to(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe without a reader would block.
    config::file::expect_regular_or_none(path)?;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_file_that_was_moved_or_deleted_is_begun_anew_before_and_at_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let moved = folder.path().join("elsewhere");
        let mut lines = AuditFile::open(&path, 8).unwrap();
        lines.write(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        lines.write(b"two\n").unwrap();
        assert_eq!((text(&moved), text(&path)), ("one\n".into(), "two\n".into()));
        std::fs::remove_file(&path).unwrap();
        // The line exceeds the rest of the file.
        lines.write(b"three33\n").unwrap();
        assert_eq!(text(&path), "three33\n");
        // A new file under the same name, as `logrotate` with `create` makes.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        lines.write(b"four\n").unwrap();
        lines.write(b"five\n").unwrap();
        assert_eq!(
            (text(&beside(&path, "1")), text(&path)),
            ("four\n".into(), "five\n".into())
        );
    }

    #[test]
    fn no_line_goes_on_with_half_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "{\"ha").unwrap();
        let mut lines = AuditFile::open(&path, 1000).unwrap();
        lines.write(b"one\n").unwrap();
        lines.write(b"two\n").unwrap();
        assert_eq!(text(&path), "{\"ha\none\ntwo\n");
        // Half a line, as a failed write leaves it.
        let mut file = append_to(&path).unwrap();
        file.write_all(b"{\"ha").unwrap();
        lines.is_torn = true;
        lines.write(b"three\n").unwrap();
        assert_eq!(text(&path), "{\"ha\none\ntwo\n{\"ha\nthree\n");
    }
}
