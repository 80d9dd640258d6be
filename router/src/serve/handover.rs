//! Hands listening sockets over to the next process, so that an upgrade drops no connections.
//!
//! ```text
//! new ── connects to server.handover ──▶ old
//! new ◀── its listening sockets ──────── old          both accept from here on
//! new ◀── 'S' ────────────────────────── old          which can give its state
//! new ── 'S' ──────────────────────────▶ old          which refuses changes from here on
//! new ◀── length, snapshot ───────────── old
//! new serves; some worker is ready (or READY_LIMIT has passed)
//! new ── 'R' ──────────────────────────▶ old          which accepts no more, drains, and ends
//! new listens on server.handover itself, under the same name
//! ```
//!
//! If anything fails before the `R`, the old process goes on serving, and accepts changes again. An old process of an
//! earlier version gives no state. The local socket is in a directory that only
//! the two processes can write to, its mode is 0600, and the old process gives its sockets only to its own user.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tracing::{info, warn};

use admin::Admin;
use state::snapshot::{self, MAX_FILE_BYTES};

/// Number of sockets handed over: data port, admin port, and the endpoint picker's if it is enabled.
const FEWEST: usize = 2;
const MOST: usize = 3;
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The byte sent with the sockets, and the byte that reports that the new process serves.
const HERE: u8 = b'L';
const READY: u8 = b'R';
/// The byte that offers the state, and that requests it.
const STATE: u8 = b'S';
/// Time limit for the offer of the state, which follows the sockets at once.
const OFFER_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for the state: gigabytes are encoded and copied.
const STATE_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Requests the state of the predecessor: a snapshot. `None` if it gives none.
    pub(super) async fn state(&mut self) -> Option<Vec<u8>> {
        let mut offered = [0];
        let offer = tokio::time::timeout(OFFER_LIMIT, self.0.read_exact(&mut offered)).await;
        if !matches!(offer, Ok(Ok(_))) || offered != [STATE] {
            warn!("the predecessor process is of a version that gives no state");
            return None;
        }
        let state = tokio::time::timeout(STATE_LIMIT, self.receive_state()).await;
        match state.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(state) => {
                info!(
                    bytes = state.len(),
                    "received the state of the predecessor process"
                );
                Some(state)
            }
            Err(error) => {
                warn!(%error, "cannot receive the state of the predecessor process");
                None
            }
        }
    }

    async fn receive_state(&mut self) -> io::Result<Vec<u8>> {
        self.0.write_all(&[STATE]).await?;
        let length = self.0.read_u64_le().await?;
        if length > MAX_FILE_BYTES as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut state = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut state).await?;
        if (state.len() as u64) < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(state)
    }

    /// Reports that this process serves, so that the predecessor drains.
    pub(super) async fn relieve(mut self) {
        if let Err(error) = self.0.write_all(&[READY]).await {
            warn!(%error, "the predecessor process was already gone");
        }
    }
}

/// Requests the sockets from the process that listens on `path`; `None` if there is no such process.
pub(super) async fn ask(path: &Path) -> io::Result<Option<(Vec<TcpListener>, Predecessor)>> {
    let stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let receive = stream.async_io(Interest::READABLE, || receive(stream.as_fd()));
    let sockets = tokio::time::timeout(ANSWER_LIMIT, receive)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let sockets = sockets.into_iter().map(TcpListener::from).collect();
    Ok(Some((sockets, Predecessor(stream))))
}

/// Serves one handover. Returns once another process has taken over the sockets.
pub(super) async fn offer(parts: &Arc<Admin>, path: &Path, sockets: &[OwnedFd]) {
    let listener = match listen(path) {
        Ok(listener) => listener,
        Err(error) => {
            warn!(%error, path = %path.display(), "handover is disabled");
            return std::future::pending().await;
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match give(parts, stream, sockets).await {
                Ok(()) => {
                    info!("another process has taken over");
                    return;
                }
                Err(error) => {
                    parts.state.operations.set_handed_over(false);
                    warn!(%error, "a handover failed");
                }
            },
            Err(error) => {
                warn!(%error, "cannot accept on the handover socket");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Binds the path atomically, replacing a socket that another process may still listen on.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let mut own = path.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let own = PathBuf::from(own);
    let _ = std::fs::remove_file(&own);
    let listener = UnixListener::bind(&own)?;
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&own, path)?;
    Ok(listener)
}

async fn give(parts: &Arc<Admin>, mut stream: UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the peer runs as user {peer}"),
        ));
    }
    stream
        .async_io(Interest::WRITABLE, || send(stream.as_fd(), sockets))
        .await?;
    stream.write_all(&[STATE]).await?;
    loop {
        // No timeout: the new process may have to load the model lists of many workers. If it dies, the stream ends.
        let mut said = [0];
        stream.read_exact(&mut said).await?;
        match said {
            [READY] => return Ok(()),
            [STATE] => give_state(parts, &mut stream).await?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Gives this process's state. Changes are refused from then on, since the new process would not know of them.
async fn give_state(parts: &Arc<Admin>, stream: &mut UnixStream) -> io::Result<()> {
    if parts.state.config.index.snapshot.is_some() {
        admin::history::save(parts).await;
    }
    parts.state.operations.set_handed_over(true);
    let state = Arc::clone(&parts.state);
    let taken = tokio::task::spawn_blocking(move || snapshot::take_all(&state, MAX_FILE_BYTES)).await?;
    let sending = async {
        stream.write_u64_le(taken.len() as u64).await?;
        stream.write_all(&taken).await
    };
    let sent = tokio::time::timeout(STATE_LIMIT, sending).await;
    sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn send(stream: BorrowedFd<'_>, sockets: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&borrowed));
    sendmsg(
        stream,
        &[IoSlice::new(&[HERE])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn receive(stream: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors);
        }
    }
    if received.bytes != 1 || byte != [HERE] || !(FEWEST..=MOST).contains(&sockets.len()) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(sockets)
}
