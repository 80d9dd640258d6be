//! Trace files, plain or gzip by their first two bytes, streamed line by line into [`crate::trace::Reader`]. A file
//! that ends within its compressed data is an error, so that a truncated download cannot pass for a shorter trace.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::generate::BadWorkload;
use crate::trace::{Format, Reader, TraceError, Turn};
use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

/// Upper bound on a line: a prompt of four million blocks.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Upper bound on empty lines, of which a few megabytes of gzip can hold billions.
const MAX_EMPTY_LINES: u64 = 1_000_000;
/// Upper bound on the bytes of all lines that are no turns.
const MAX_IDLE_BYTES: u64 = 1 << 30;

/// An error of reading a trace.
#[derive(Debug, Error)]
pub enum TraceFileError {
    /// The file cannot be opened.
    #[error("cannot open trace {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Reading or unpacking failed partway.
    #[error("{}: line {line}: cannot be read to its end", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The incomplete line.
        line: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The trace has no turns.
    #[error("{name}: the trace has no turns")]
    NoTurns {
        /// Path of the trace.
        name: String,
    },
    /// A generator cannot be built.
    #[error("this workload cannot be generated")]
    Generator(#[from] BadWorkload),
    /// A line is not a valid turn.
    #[error("{}: {fault}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, and the reason.
        fault: TraceError,
    },
}

/// An open trace: an iterator of turns that ends at the first error.
pub struct TraceFile {
    path: PathBuf,
    input: Box<dyn BufRead>,
    reader: Reader,
    buffer: Vec<u8>,
    empty_lines: u64,
    /// Bytes of lines that are no turns.
    idle_bytes: u64,
    done: bool,
}

impl TraceFile {
    /// Opens a trace. Fails with [`TraceFileError::Open`] if it cannot be opened or its first bytes cannot be read.
    pub fn open(path: &Path, format: Format) -> Result<Self, TraceFileError> {
        let failed = |source| TraceFileError::Open {
            path: path.to_owned(),
            source,
        };
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
        let gzip = file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
        let input: Box<dyn BufRead> = if gzip {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file)))
        } else {
            Box::new(file)
        };
        let reader = Reader::new(format);
        Ok(Self {
            path: path.to_owned(),
            input,
            reader,
            buffer: Vec::new(),
            empty_lines: 0,
            idle_bytes: 0,
            done: false,
        })
    }

    /// Opens a trace in memory.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            path: "memory".into(),
            input: Box::new(io::Cursor::new(bytes.to_vec())),
            reader: Reader::new(Format::Auto),
            buffer: Vec::new(),
            empty_lines: 0,
            idle_bytes: 0,
            done: false,
        }
    }

    /// Returns the parser, which has the metadata, the class names and the number of lines read.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    fn step(&mut self) -> Result<Option<Turn>, TraceFileError> {
        loop {
            self.buffer.clear();
            let line = self.reader.lines() + 1;
            let broken = |source| TraceFileError::Read {
                path: self.path.clone(),
                line,
                source,
            };
            let mut limited = self.input.by_ref().take(MAX_LINE_BYTES);
            let read = limited.read_until(b'\n', &mut self.buffer).map_err(broken)?;
            if read == 0 {
                return Ok(None);
            }
            if self.buffer.last() == Some(&b'\n') {
                self.buffer.pop();
            } else if self.buffer.len() as u64 == MAX_LINE_BYTES {
                let reason = format!("longer than {MAX_LINE_BYTES} bytes");
                return Err(broken(io::Error::new(io::ErrorKind::InvalidData, reason)));
            }
            let text = std::str::from_utf8(&self.buffer)
                .map_err(|error| broken(io::Error::new(io::ErrorKind::InvalidData, error)))?;
            let turn = self.reader.line(text);
            if let Some(turn) = turn.map_err(|fault| TraceFileError::Line {
                path: self.path.clone(),
                fault,
            })? {
                return Ok(Some(turn));
            }
            self.idle_bytes += read as u64;
            self.empty_lines += u64::from(self.buffer.is_empty());
            if self.empty_lines > MAX_EMPTY_LINES || self.idle_bytes > MAX_IDLE_BYTES {
                return Err(idle(&self.path, line));
            }
        }
    }
}

fn idle(path: &Path, line: u64) -> TraceFileError {
    let reason =
        format!("more than {MAX_EMPTY_LINES} empty lines, or {MAX_IDLE_BYTES} bytes of lines without turns");
    TraceFileError::Read {
        path: path.to_owned(),
        line,
        source: io::Error::new(io::ErrorKind::InvalidData, reason),
    }
}

impl Iterator for TraceFile {
    type Item = Result<Turn, TraceFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.step().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(count: u32) -> String {
        let row = |n| {
            format!(
                r#"{{"ts":{n},"conv":{n},"turn":0,"prompt_tokens":{},"response_tokens":1}}"#,
                n * 7919 % 1013
            )
        };
        (0..count).map(|n| row(n) + "\n").collect()
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn plain_and_gzip_read_alike_whatever_the_name() {
        let text = lines(50);
        for bytes in [text.clone().into_bytes(), gzip(&text)] {
            let file = file(&bytes);
            let turns: Vec<_> = TraceFile::open(file.path(), Format::Auto)
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert_eq!(turns.len(), 50);
        }
    }

    #[test]
    fn a_truncated_gzip_is_refused_at_the_line_it_reached() {
        let packed = gzip(&lines(5000));
        let file = file(&packed[..packed.len() / 2]);
        let mut trace = TraceFile::open(file.path(), Format::Auto).unwrap();
        let error = trace.find_map(Result::err).expect("truncated");
        let read = trace.reader().lines();
        assert!(read > 100 && read < 4999);
        assert!(
            error
                .to_string()
                .contains(&format!("line {}: cannot be read", read + 1)),
            "{error}"
        );
        assert!(error.source().is_some());
        assert!(trace.next().is_none());
    }

    #[test]
    fn a_flood_of_empty_lines_is_refused_by_its_line() {
        let file = file(&gzip(&(lines(1) + &"\n".repeat(MAX_EMPTY_LINES as usize + 5))));
        let mut trace = TraceFile::open(file.path(), Format::Auto).unwrap();
        let error = trace.find_map(Result::err).expect("it is refused");
        assert!(
            error
                .to_string()
                .contains(&format!("line {}: ", MAX_EMPTY_LINES + 2)),
            "{error}"
        );
        assert!(error.source().unwrap().to_string().contains("empty lines"));
    }

    #[test]
    fn bytes_of_lines_without_turns_are_bounded_in_sum() {
        let mut trace = TraceFile::of_bytes(b" \n  \n");
        trace.idle_bytes = MAX_IDLE_BYTES - 2;
        let error = trace.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 2: "), "{error}");
    }

    #[test]
    fn a_bad_line_carries_file_number_and_reason() {
        let file = file(b"{\"ts\":1,\"conv\":1,\"turn\":0,\"prompt_tokens\":-1,\"response_tokens\":1}\n");
        let error = TraceFile::open(file.path(), Format::Auto)
            .unwrap()
            .find_map(Result::err)
            .unwrap();
        assert!(
            error.to_string().contains("line 1: field `prompt_tokens`"),
            "{error}"
        );
    }

    #[test]
    fn bytes_that_are_not_text_are_refused() {
        let file = file(b"{\"ts\":1}\n\xff\xfe\n");
        let error = TraceFile::open(file.path(), Format::Auto)
            .unwrap()
            .find_map(Result::err)
            .unwrap();
        assert!(error.to_string().contains("line 1"), "{error}");
        assert!(TraceFile::open(Path::new("/nowhere/at/all"), Format::Auto).is_err());
    }

    /// Returns the path of a published trace: in `TAILROUTE_TRACES`, or `../shared/traces` beside the workspace.
    fn published(name: &str) -> Option<PathBuf> {
        let fallback = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
        let folder = std::env::var_os("TAILROUTE_TRACES").map_or(fallback, PathBuf::from);
        let path = folder.join(name);
        if !path.exists() {
            println!("skipped: no {}", path.display());
            return None;
        }
        Some(path)
    }

    /// The published turn trace was rebuilt from raw requests by the rule of the Mooncake reader. Reduced to raw
    /// requests again, it must give the same conversations.
    #[test]
    fn rebuilding_mooncake_conversations_gives_the_published_turns() {
        let Some(path) = published("mooncake_conv.jsonl.gz") else {
            return;
        };
        let turns: Vec<Turn> = TraceFile::open(&path, Format::Auto)
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(turns.len(), 12031);
        let mut reader = Reader::new(Format::Mooncake);
        let mut different = 0;
        for turn in &turns {
            let line = format!(
                r#"{{"timestamp":{},"input_length":{},"output_length":{},"hash_ids":{:?}}}"#,
                turn.ts_s * 1e3,
                turn.input_tokens().0,
                turn.response_tokens.0,
                turn.blocks.as_ref().unwrap()
            );
            let rebuilt = reader.line(&line).unwrap().unwrap();
            different +=
                u32::from((rebuilt.turn, rebuilt.history_tokens) != (turn.turn, turn.history_tokens));
        }
        assert_eq!(different, 0);
    }
}
