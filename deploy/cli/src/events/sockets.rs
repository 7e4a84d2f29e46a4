//! The sockets of the publisher, and the batches that it keeps for replays.
#![expect(clippy::big_endian_bytes, reason = "vLLM writes numbers of batches in this order")]

use std::collections::VecDeque;
use std::future::pending;

use anyhow::{Context, Result, bail};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Batches that are kept, and their bytes in all.
const KEPT_BATCHES: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;
/// The number that ends a replay.
const END: [u8; 8] = (-1i64).to_be_bytes();

/// A batch with its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) payload: Vec<u8>,
}

/// The newest batches.
#[derive(Debug)]
pub(super) struct Replays {
    kept: VecDeque<Numbered>,
    bytes: usize,
    next: u64,
}

impl Replays {
    /// Numbers batches from `first` on.
    pub(super) fn new(first: u64) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, next: first }
    }

    /// Gives a batch its number, and keeps it for a while.
    pub(super) fn add(&mut self, payload: Vec<u8>) -> Numbered {
        let batch = Numbered { number: self.next, payload };
        self.next += 1;
        self.bytes += batch.payload.len();
        self.kept.push_back(batch.clone());
        while self.kept.len() > KEPT_BATCHES || (self.bytes > KEPT_BYTES && self.kept.len() > 1) {
            let dropped = self.kept.pop_front().map_or(0, |batch| batch.payload.len());
            self.bytes -= dropped;
        }
        batch
    }

    /// The batches from number `first` on; `None` when some of them are not kept any more.
    pub(super) fn from(&self, first: u64) -> Option<Vec<Numbered>> {
        let oldest = self.kept.front().map_or(self.next, |batch| batch.number);
        if first < oldest {
            return None;
        }
        Some(self.kept.iter().filter(|batch| batch.number >= first).cloned().collect())
    }

    /// Batches that stand for all that there were: the last has the number of the last.
    pub(super) fn numbered_to_the_last(&self, payloads: Vec<Vec<u8>>) -> Vec<Numbered> {
        let first = self.next.saturating_sub(payloads.len() as u64);
        let numbered = (first..).zip(payloads);
        numbered.map(|(number, payload)| Numbered { number, payload }).collect()
    }
}

/// Who asked for a replay.
pub(super) type Client = Vec<u8>;

pub(super) struct Sockets {
    publish: PubSocket,
    replay: Option<RouterSocket>,
    topic: Vec<u8>,
}

impl Sockets {
    pub(super) async fn bind(publish: &str, replay: Option<&str>, topic: &str) -> Result<Self> {
        let mut sockets =
            Self { publish: PubSocket::new(), replay: None, topic: topic.as_bytes().to_vec() };
        bind(&mut sockets.publish, "--zmq", publish).await?;
        if let Some(address) = replay {
            let mut socket = RouterSocket::new();
            bind(&mut socket, "--replay", address).await?;
            sockets.replay = Some(socket);
        }
        Ok(sockets)
    }

    /// Sends a batch to all subscribers. A subscriber that is too slow lacks it, and may ask for it.
    pub(super) async fn send(&mut self, batch: &Numbered) -> Result<()> {
        let message = message(&self.topic, &[&batch.number.to_be_bytes(), &batch.payload]);
        self.publish.send(message).await.context("cannot publish an event")
    }

    /// The next request for a replay: who asks, and for which number on. Without a socket for them
    /// there is none.
    pub(super) async fn replay_request(&mut self) -> Result<(Client, u64)> {
        let Some(socket) = &mut self.replay else { return pending().await };
        loop {
            let message = socket.recv().await.context("cannot receive requests for replays")?;
            let frames: Vec<_> = message.into_vec();
            match frames.as_slice() {
                [client, delimiter, first] if delimiter.is_empty() && first.len() == 8 => {
                    let mut number = [0; 8];
                    number.copy_from_slice(first);
                    return Ok((client.to_vec(), u64::from_be_bytes(number)));
                }
                _ => tracing::warn!(
                    frames = frames.len(),
                    "a request for a replay was left out: it is an empty frame and a number of 8 bytes"
                ),
            }
        }
    }

    /// Sends batches to who asked, and the end. Who went away meanwhile gets nothing.
    pub(super) async fn answer(&mut self, client: &Client, batches: &[Numbered]) -> Result<()> {
        let topic = self.topic.clone();
        let Some(socket) = &mut self.replay else { return Ok(()) };
        let batch = |batch: &Numbered| {
            message(client, &[b"", &topic, &batch.number.to_be_bytes(), &batch.payload])
        };
        let end = message(client, &[b"", b"", &END, b""]);
        for message in batches.iter().map(batch).chain([end]) {
            if let Err(error) = socket.send(message).await {
                tracing::debug!("a replay was not sent to its end: {error}");
                break;
            }
        }
        Ok(())
    }
}

/// Binds an address as vLLM writes it: `*` is every network of this host.
async fn bind(socket: &mut impl Socket, option: &str, address: &str) -> Result<()> {
    if !address.starts_with("tcp://") {
        bail!("{option} is {address}: give an address such as tcp://127.0.0.1:5557");
    }
    let bound = socket.bind(&address.replace("://*:", "://0.0.0.0:")).await;
    bound
        .map(|_| ())
        .with_context(|| format!("cannot bind {option} {address}: choose a free port of this host"))
}

fn message(first: &[u8], rest: &[&[u8]]) -> ZmqMessage {
    let mut message = ZmqMessage::from(first.to_vec());
    for frame in rest {
        message.push_back(frame.to_vec().into());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_begins_where_it_was_asked_for() {
        let mut replays = Replays::new(0);
        for number in 0..5u8 {
            assert_eq!(replays.add(vec![number]).number, u64::from(number));
        }
        let numbers = |batches: Vec<Numbered>| {
            batches.into_iter().map(|batch| batch.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(replays.from(3).unwrap()), [3, 4]);
        assert_eq!(numbers(replays.from(5).unwrap()), [0; 0]);
        assert_eq!(numbers(replays.numbered_to_the_last(vec![vec![], vec![]])), [3, 4]);
    }

    #[test]
    fn what_is_not_kept_is_not_replayed_in_part() {
        let mut replays = Replays::new(0);
        for _ in 0..=KEPT_BATCHES {
            replays.add(vec![]);
        }
        assert_eq!(replays.from(0), None);
        assert_eq!(replays.from(1).unwrap().len(), KEPT_BATCHES);
        replays.add(vec![0; KEPT_BYTES + 1]);
        assert_eq!((replays.kept.len(), replays.bytes), (1, KEPT_BYTES + 1));
        replays.add(vec![1]);
        assert_eq!((replays.kept.len(), replays.bytes), (1, 1));
    }
}
