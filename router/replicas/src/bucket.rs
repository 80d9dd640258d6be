//! The cluster's key-value bucket in JetStream: the state that all replicas share, written by compare-and-set.
//!
//! The bucket is named after the cluster and created by the first replica. Nothing is cached here: each read asks the
//! leader of the bucket's stream, so that a lost or recreated bucket is noticed and no follower's old value is read.

use std::time::Duration;

use async_nats::jetstream::context::{PublishErrorKind, RequestError, RequestErrorKind};
use async_nats::jetstream::kv::Operation;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{self, LastRawMessageError, LastRawMessageErrorKind};
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, HeaderMap, HeaderValue, header};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;

/// Number of revisions kept per key: the maximum of a bucket.
pub const HISTORY: usize = 64;
/// Length of the longest value, in bytes.
pub const LONGEST_BYTES: usize = 64 << 10;
/// Largest number of bytes of all values on the server's disk.
const MOST_BYTES: i64 = 64 << 20;
/// Highest accepted number of a revision or a calibration. Numbers count up by one.
pub(super) const HIGHEST_NUMBER: u64 = 1 << 53;
/// Pause between two reads after notifications, which limits the effect of continuous writes.
pub(super) const BREATH: Duration = Duration::from_millis(50);
/// Time limit for a request to the bucket.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// Header that marks a deleted value.
const OPERATION: &str = "KV-Operation";

#[derive(Debug)]
pub(super) struct Bucket {
    client: Client,
    name: String,
}

/// The reason why the bucket cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The server has no JetStream.
    #[error("the NATS server has no JetStream (start it with --jetstream)")]
    NoJetStream,
    /// The request failed.
    #[error("JetStream's bucket {0}: {1}")]
    Trouble(String, String),
    /// The value is too long.
    #[error("{0} bytes; the bucket accepts at most {LONGEST_BYTES}")]
    Long(usize),
}

/// The entry of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Sequence number of the entry, which compare-and-set compares. 0 if the key was never written.
    pub(super) sequence: u64,
    pub(super) value: Option<Bytes>,
}

impl Bucket {
    pub(super) fn new(client: Client, name: &str) -> Self {
        Self {
            client,
            name: name.to_owned(),
        }
    }

    /// Returns a channel notified of every write to a key, even a rejected one. It closes with the subscription.
    pub(super) async fn changes(&self, key: &str) -> Result<watch::Receiver<()>, BucketError> {
        let heard = self.client.subscribe(self.subject(key)).await;
        let mut heard = heard.map_err(|error| self.trouble(error))?;
        let (tell, told) = watch::channel(());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tell.closed() => return,
                    message = heard.next() => match message {
                        Some(_) => tell.send_replace(()),
                        None => return,
                    },
                }
            }
        });
        Ok(told)
    }

    /// Reads a key. Creates the bucket if it does not exist.
    pub(super) async fn get(&self, key: &str) -> Result<Standing, BucketError> {
        let context = self.context();
        let stream = context.get_stream_no_info(self.stream()).await;
        let stream = stream.map_err(|error| self.trouble(error))?;
        let error = match stream.get_last_raw_message_by_subject(&self.subject(key)).await {
            Ok(message) => return Ok(standing(message)),
            Err(error) => error,
        };
        match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(Standing::default()),
            LastRawMessageErrorKind::JetStream(why) if why.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                self.make(&context).await?;
                Ok(Standing::default())
            }
            _ if is_no_jetstream(&error) => Err(BucketError::NoJetStream),
            _ => Err(self.trouble(error)),
        }
    }

    /// Returns all kept values of a key, the oldest first.
    pub(super) async fn history(&self, key: &str) -> Result<Vec<Bytes>, BucketError> {
        let all = async {
            let store = self.context().get_key_value(&self.name).await;
            let store = store.map_err(|error| self.trouble(error))?;
            let entries = store.history(key).await;
            let mut entries = entries.map_err(|error| self.trouble(error))?.take(HISTORY);
            let mut values = Vec::new();
            while let Some(entry) = entries.next().await {
                let entry = entry.map_err(|error| self.trouble(error))?;
                if entry.operation == Operation::Put && entry.value.len() <= LONGEST_BYTES {
                    values.push(entry.value);
                }
            }
            Ok(values)
        };
        let in_time = tokio::time::timeout(LIMIT, all).await;
        in_time.unwrap_or_else(|_| Err(self.trouble("its history was not received")))
    }

    /// Writes a key if its sequence is still `over`. Returns the new sequence, or `None` if the key was changed.
    pub(super) async fn put(&self, key: &str, value: Vec<u8>, over: u64) -> Result<Option<u64>, BucketError> {
        if value.len() > LONGEST_BYTES {
            return Err(BucketError::Long(value.len()));
        }
        let mut headers = HeaderMap::new();
        headers.insert(
            header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
            HeaderValue::from(over),
        );
        let context = self.context();
        let taken = async {
            let sent = context.publish_with_headers(self.subject(key), headers, value.into());
            sent.await?.await
        };
        match taken.await {
            Ok(taken) => Ok(Some(taken.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
            Err(error) => Err(self.trouble(error)),
        }
    }

    /// Creates the bucket as a stream, because the library's own call uses options that servers before 2.10 do not
    /// know.
    async fn make(&self, context: &Context) -> Result<(), BucketError> {
        let made = context.create_stream(stream::Config {
            name: self.stream(),
            description: Some("what the replicas of a fleet of tailroute have in common".to_owned()),
            subjects: vec![self.subject(">")],
            max_messages_per_subject: HISTORY as i64,
            // Value and headers.
            max_message_size: 2 * LONGEST_BYTES as i32,
            max_bytes: MOST_BYTES,
            discard: stream::DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            num_replicas: 1,
            ..stream::Config::default()
        });
        made.await.map_err(|error| self.trouble(error))?;
        Ok(())
    }

    fn context(&self) -> Context {
        let mut context = jetstream::new(self.client.clone());
        context.set_timeout(LIMIT);
        context
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    /// Returns the error of an invalid value.
    pub(super) fn unreadable(&self, key: &str, why: &str) -> BucketError {
        self.trouble(format!(
            "the value of {key} is invalid ({why}); do all replicas have the same version and configuration? `nats \
             kv del {} {key}` removes it",
            self.name
        ))
    }

    pub(super) fn is_late(&self) -> BucketError {
        self.trouble("timed out waiting for a response")
    }

    /// Returns the error of a bucket whose server has lost JetStream.
    pub(super) fn is_lost(&self) -> BucketError {
        self.trouble(BucketError::NoJetStream)
    }

    fn trouble(&self, error: impl std::fmt::Display) -> BucketError {
        BucketError::Trouble(self.name.clone(), error.to_string())
    }
}

fn standing(message: StreamMessage) -> Standing {
    // Deletions carry this header. Values may carry it too, as `PUT`.
    let is_gone = message
        .headers
        .get(OPERATION)
        .is_some_and(|marked| marked.as_str() != "PUT");
    Standing {
        sequence: message.sequence,
        value: (!is_gone).then_some(message.payload),
    }
}

fn is_no_jetstream(error: &LastRawMessageError) -> bool {
    if let LastRawMessageErrorKind::JetStream(why) = error.kind() {
        let none = [
            ErrorCode::JETSTREAM_NOT_ENABLED,
            ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
        ];
        return none.contains(&why.error_code());
    }
    // Without JetStream, requests to it have no responders.
    let request = std::error::Error::source(error).and_then(|why| why.downcast_ref::<RequestError>());
    request.is_some_and(|why| why.kind() == RequestErrorKind::NoResponders)
}
