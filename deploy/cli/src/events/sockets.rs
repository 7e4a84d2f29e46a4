//! The sockets of the publisher, one task for each peer.
//!
//! No peer can hold up the publisher or another peer: each task takes batches from those that are kept, at
//! the speed of its peer. A subscriber that is too slow lacks batches, and may ask for them.
#![expect(clippy::big_endian_bytes, reason = "vLLM writes numbers of batches in this order")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::kept::{Kept, Numbered};
use super::zmtp::{self, PeerError, Reader, Writer};

/// Peers of a socket at once. Others wait until one has gone.
const PEERS_MAX: usize = 1024;
/// Subscriptions of a peer: a router has one.
const SUBSCRIPTIONS_MAX: usize = 64;
/// The number that ends a replay.
const END: [u8; 8] = (-1i64).to_be_bytes();
/// How long to wait when no peer can be accepted, as when this process has too many files open.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where the present state goes, for a subscriber that asked for batches that are not kept.
pub(super) type StateWanted = oneshot::Sender<Vec<Numbered>>;

#[derive(Debug)]
pub(super) struct Sockets {
    shared: Arc<Shared>,
    wanted: mpsc::Receiver<StateWanted>,
    /// Where subscribers connect.
    pub(super) events: SocketAddr,
    /// Where replays are asked for.
    pub(super) replays: Option<SocketAddr>,
}

#[derive(Debug)]
struct Shared {
    topic: Vec<u8>,
    kept: Mutex<Kept>,
    /// The number of the next batch.
    next: watch::Sender<u64>,
    wants_state: mpsc::Sender<StateWanted>,
}

impl Sockets {
    /// Binds the socket for events, and that for replays. Numbers batches from `first` on.
    pub(super) async fn bind(
        events: &str,
        replays: Option<&str>,
        topic: &str,
        first: u64,
    ) -> Result<Self> {
        let listener = listen("--zmq", events).await?;
        let replays = match replays {
            Some(address) => Some(listen("--replay", address).await?),
            None => None,
        };
        let (wants_state, wanted) = mpsc::channel(PEERS_MAX);
        let shared = Arc::new(Shared {
            topic: topic.as_bytes().to_vec(),
            kept: Mutex::new(Kept::new(first)),
            next: watch::Sender::new(first),
            wants_state,
        });
        let events = listener.local_addr()?;
        let replays_at = replays.as_ref().map(TcpListener::local_addr).transpose()?;
        tokio::spawn(accept(listener, Arc::clone(&shared), Serves::Events));
        if let Some(replays) = replays {
            tokio::spawn(accept(replays, Arc::clone(&shared), Serves::Replays));
        }
        Ok(Self { shared, wanted, events, replays: replays_at })
    }

    /// Gives a batch its number, and sends it to all subscribers.
    pub(super) fn send(&self, payload: Vec<u8>) {
        let next = {
            let mut kept = self.shared.kept();
            kept.add(payload);
            kept.next()
        };
        self.shared.next.send_replace(next);
    }

    /// Who wants the present state next. Without a socket for replays nobody ever does.
    pub(super) async fn state_wanted(&mut self) -> Option<StateWanted> {
        self.wanted.recv().await
    }

    /// Batches that stand for all that there were.
    pub(super) fn numbered_to_the_last(&self, payloads: Vec<Vec<u8>>) -> Vec<Numbered> {
        self.shared.kept().numbered_to_the_last(payloads)
    }
}

#[derive(Clone, Copy, Debug)]
enum Serves {
    Events,
    Replays,
}

/// Listens at an address as vLLM writes it: `*` is every network of this host.
async fn listen(option: &str, address: &str) -> Result<TcpListener> {
    let Some(place) = address.strip_prefix("tcp://") else {
        bail!("{option} is {address}: give an address such as tcp://127.0.0.1:5557");
    };
    let place = match place.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => place.to_owned(),
    };
    TcpListener::bind(&place).await.with_context(|| {
        format!(
            "cannot bind {option} {address}: give an address of this host and a free port, such as \
             tcp://127.0.0.1:5557"
        )
    })
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, serves: Serves) {
    let room = Arc::new(Semaphore::new(PEERS_MAX));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let Err(error) = shared.serve(serves, stream).await;
                    tracing::debug!(%peer, "a peer of the events is gone: {error}");
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a subscriber: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// What a task for a peer comes to: it ends with the connection.
type Never = std::convert::Infallible;

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, serves: Serves, stream: TcpStream) -> Result<Never, PeerError> {
        match serves {
            Serves::Events => {
                let mut next = self.next.subscribe();
                let (reader, writer) = zmtp::connect(stream, "PUB").await?;
                let topics = Mutex::default();
                let (gone, _) = tokio::try_join!(
                    self.take_subscriptions(reader, &writer, &topics),
                    self.send_events(&mut next, &writer, &topics),
                )?;
                Ok(gone)
            }
            Serves::Replays => {
                let (reader, writer) = zmtp::connect(stream, "ROUTER").await?;
                self.answer_replays(reader, &writer).await
            }
        }
    }

    async fn take_subscriptions(
        &self,
        mut reader: Reader,
        writer: &Writer,
        topics: &Mutex<Vec<Vec<u8>>>,
    ) -> Result<Never, PeerError> {
        loop {
            let message = reader.message(writer).await?;
            let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
            match message.concat().split_first() {
                Some((1, topic)) if topics.len() < SUBSCRIPTIONS_MAX => topics.push(topic.to_vec()),
                Some((0, topic)) => {
                    if let Some(place) = topics.iter().position(|known| known == topic) {
                        topics.remove(place);
                    }
                }
                _ => tracing::warn!("a subscriber sent what is no subscription, or one too many"),
            }
        }
    }

    async fn send_events(
        &self,
        next: &mut watch::Receiver<u64>,
        writer: &Writer,
        topics: &Mutex<Vec<Vec<u8>>>,
    ) -> Result<Never, PeerError> {
        let mut wanted = *next.borrow_and_update();
        loop {
            while let Some(batch) = self.next_batch(wanted) {
                wanted = batch.number + 1;
                let topics = || topics.lock().unwrap_or_else(PoisonError::into_inner);
                if topics().iter().any(|topic| self.topic.starts_with(topic)) {
                    let number = batch.number.to_be_bytes();
                    writer.send(&[&self.topic, &number, &batch.payload]).await?;
                }
            }
            // The sender lives as long as this does.
            let _ = next.changed().await;
        }
    }

    fn next_batch(&self, wanted: u64) -> Option<Numbered> {
        self.kept().first_since(wanted)
    }

    async fn answer_replays(
        &self,
        mut reader: Reader,
        writer: &Writer,
    ) -> Result<Never, PeerError> {
        loop {
            let request = reader.message(writer).await?;
            let first = match request.as_slice() {
                [delimiter, first] if delimiter.is_empty() => {
                    <[u8; 8]>::try_from(first.as_slice()).ok()
                }
                _ => None,
            };
            let Some(first) = first.map(u64::from_be_bytes) else {
                tracing::warn!(
                    frames = request.len(),
                    "a request for a replay was left out: it is an empty frame and a number of 8 bytes"
                );
                continue;
            };
            for batch in self.batches_from(first).await {
                let number = batch.number.to_be_bytes();
                writer.send(&[b"", &self.topic, &number, &batch.payload]).await?;
            }
            writer.send(&[b"", b"", &END, b""]).await?;
        }
    }

    /// The batches from `first` on; when they are not kept any more, those of the present state.
    async fn batches_from(&self, first: u64) -> Vec<Numbered> {
        let kept = self.kept().from(first);
        if let Some(batches) = kept {
            return batches;
        }
        let (tell, state) = oneshot::channel();
        // Nobody answers when the publisher ends, and this connection with it.
        let _ = self.wants_state.send(tell).await;
        state.await.unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
