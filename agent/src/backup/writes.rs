//! Blocks of the pool, copied into memory of the agent, on their way to a drive.

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use crossbeam_utils::sync::{Parker, Unparker};
use kv_cache::{BlockKey, Handle, Wanted};
use kv_drive::encoding::{Encoded, Encoder, EncoderFigures, EncodingOptions, Plain};
use kv_drive::io::Buffer;
use kv_drive::store::Store;
use kv_drive::volume::{BlockSpec, ReserveError, WriteError, WriteTicket};
use kv_drive::{ALL_LAYERS, Encoding, Page};
use rackline::LocalCache;
use rackline::dma::{Checksum, DmaEngine, HostDma, LoadJob};

use super::Candidate;
use crate::figures::RefusedBy;

/// Buffers that are kept for the next writes.
const SPARE_MAX: usize = 64;

/// A write that is over.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its number.
    pub(super) write: u64,
    /// What became of its block.
    pub(super) what: What,
}

/// What became of a block that was to be written.
#[derive(Debug)]
pub(super) enum What {
    /// So many bytes are written: the next commit makes them durable.
    Written { bytes: u64, key: BlockKey, handle: Handle },
    /// It left the pool, changed or was damaged before it was copied.
    Lost(BlockKey),
    /// No drive took it.
    Refused(RefusedBy),
    /// A drive has it already.
    Known,
}

/// A write that a drive has ended: what it wrote, and the memory.
#[derive(Debug)]
struct Told {
    write: u64,
    key: BlockKey,
    handle: Handle,
    bytes: u64,
    buffer: Option<Buffer>,
    /// `None` when the drive stopped.
    outcome: Option<Result<(), WriteError>>,
}

/// Tells once that a write is over, also when its drive stops and drops it.
#[derive(Debug)]
struct Telling {
    tell: Sender<Told>,
    wake: Unparker,
    told: Option<Told>,
}

impl Telling {
    fn ended(mut self, buffer: Option<Buffer>, outcome: Result<(), WriteError>) {
        if let Some(told) = &mut self.told {
            (told.buffer, told.outcome) = (buffer, Some(outcome));
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        // The thread that waits for it may have ended.
        let _ = self.told.take().map(|told| self.tell.send(told));
        self.wake.unpark();
    }
}

/// Writes under way.
#[derive(Debug)]
pub(super) struct Writes {
    tell: Sender<Told>,
    told: Receiver<Told>,
    /// Where the thread waits for them.
    parker: Parker,
    /// Writes under way.
    tickets: BTreeMap<u64, WriteTicket>,
    spare: Vec<Buffer>,
    encoder: Encoder,
}

impl Writes {
    pub(super) fn new(encoding: EncodingOptions) -> Self {
        let (tell, told) = unbounded();
        let (tickets, spare, parker) = (BTreeMap::new(), Vec::new(), Parker::new());
        Self { tell, told, parker, tickets, spare, encoder: Encoder::new(encoding) }
    }

    /// What was encoded.
    pub(super) const fn encoder_figures(&self) -> EncoderFigures {
        self.encoder.figures()
    }

    /// Copies blocks out of the pool, and begins to write those that were whole: not encoded if it
    /// `hurries`. Returns what became of the others.
    pub(super) fn begin(
        &mut self,
        cache: &LocalCache<'_>,
        dma: &HostDma,
        store: &Store,
        blocks: &[(u64, Candidate)],
        hurries: bool,
    ) -> Vec<Ended> {
        let wanted: Vec<_> = blocks
            .iter()
            .map(|(_, block)| Wanted { handle: block.handle, key: block.key, bytes: block.bytes })
            .collect();
        let (mut ended, mut opened) = (Vec::new(), Vec::new());
        for ((write, block), ticket) in blocks.iter().zip(cache.open(&wanted)) {
            let write = *write;
            let length = usize::try_from(block.bytes).unwrap_or(usize::MAX);
            match (ticket, self.buffer(length)) {
                (Ok(ticket), Ok(buffer)) => opened.push(((write, *block), ticket, buffer, length)),
                (Err(_), _) => ended.push(Ended { write, what: What::Lost(block.key) }),
                (Ok(_), Err(error)) => {
                    tracing::warn!("no memory for a backup: {error}");
                    ended.push(Ended { write, what: What::Refused(RefusedBy::Failed) });
                }
            }
        }
        let mut jobs: Vec<_> = opened
            .iter_mut()
            .map(|(_, ticket, buffer, length)| {
                let bytes = buffer.bytes_mut().unwrap_or_default();
                // What follows the payload in its last page is written as zeros.
                let (payload, rest) = bytes.split_at_mut(*length);
                rest.fill(0);
                LoadJob { payload: ticket.payload(), parts: vec![payload] }
            })
            .collect();
        let loaded = dma.load(&mut jobs);
        drop(jobs);
        let tickets: Vec<_> = opened
            .iter()
            .zip(&loaded)
            .map(|((_, ticket, ..), sum)| (ticket.clone(), sum.as_ref().ok().map(|sum| sum.0)))
            .collect();
        // AGENT-B1: no use of the block.
        let closed = cache.close_unused(&tickets);
        for ((((write, block), _, buffer, _), sum), outcome) in
            opened.into_iter().zip(loaded).zip(closed)
        {
            match (sum, outcome) {
                (Ok(Checksum(crc)), Ok(())) => {
                    let (encoded, buffer) = self.encode(&block, crc, buffer, hurries);
                    let what = self.write(store, write, &block, crc, encoded, buffer).err();
                    ended.extend(what.map(|what| Ended { write, what }));
                }
                (Ok(_), Err(_)) | (Err(_), _) => {
                    self.spare.push(buffer);
                    ended.push(Ended { write, what: What::Lost(block.key) });
                }
            }
        }
        self.spare.truncate(SPARE_MAX);
        ended
    }

    fn buffer(&mut self, bytes: usize) -> std::io::Result<Buffer> {
        let fits = |buffer: &Buffer| buffer.capacity() >= bytes;
        match self.spare.iter().position(fits) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => Buffer::zeroed(bytes),
        }
    }

    /// Encodes a block into other memory, if that pays. Returns what is to be written, and how.
    fn encode(
        &mut self,
        block: &Candidate,
        crc: u32,
        buffer: Buffer,
        hurries: bool,
    ) -> (Encoded, Buffer) {
        let length = u32::try_from(block.bytes).unwrap_or(u32::MAX);
        let raw = Encoded { encoding: Encoding::Raw, stored_bytes: length };
        let mut into = match self.encoder.encodes().then(|| self.buffer(length as usize)) {
            Some(Ok(into)) => into,
            // Without more memory the block is written as it is.
            Some(Err(_)) | None => return (raw, buffer),
        };
        let payload = buffer.bytes().and_then(|all| all.get(..length as usize));
        let plain = Plain { key: block.key, payload: payload.unwrap_or_default(), crc };
        let encoded = self.encoder.encode(&plain, hurries, &mut into);
        let (written, spare) =
            if encoded.encoding == Encoding::Raw { (buffer, into) } else { (into, buffer) };
        self.spare.push(spare);
        (encoded, written)
    }

    fn write(
        &mut self,
        store: &Store,
        write: u64,
        block: &Candidate,
        crc: u32,
        encoded: Encoded,
        buffer: Buffer,
    ) -> Result<(), What> {
        let Candidate { key, handle, bytes, depth, tag } = *block;
        let length = u32::try_from(bytes).map_err(|_| What::Refused(RefusedBy::Unfit))?;
        // The pool does not know what its bytes mean: one page has all layers.
        let page = Page {
            fingerprint: 0,
            layout_version: 0,
            layer: ALL_LAYERS,
            first_token: 0,
            last_token: 0,
            encoding: encoded.encoding,
            offset_bytes: 0,
            bytes: length,
            crc,
        };
        let stored_bytes = encoded.stored_bytes;
        let spec = BlockSpec { key, tag, depth, bytes: length, stored_bytes, crc, pages: &[page] };
        match store.reserve(&spec) {
            Ok((_, reservation)) => {
                let told = Told { write, key, handle, bytes, buffer: None, outcome: None };
                let (tell, wake) = (self.tell.clone(), self.parker.unparker().clone());
                let telling = Telling { tell, wake, told: Some(told) };
                let done = move |buffer, outcome| telling.ended(buffer, outcome);
                self.tickets.insert(write, reservation.ticket());
                reservation.write(buffer, Box::new(done));
                Ok(())
            }
            Err(refused) => {
                self.spare.push(buffer);
                let why = match refused {
                    ReserveError::Exists => return Err(What::Known),
                    ReserveError::Full => RefusedBy::Full,
                    ReserveError::Marked => RefusedBy::Marked,
                    ReserveError::Invalid(_) => RefusedBy::Unfit,
                    _ => RefusedBy::Failed,
                };
                tracing::debug!(?key, "a block is not backed up: {refused}");
                Err(What::Refused(why))
            }
        }
    }

    /// Gives up a write whose device does not end it. `false` when it has ended: what became of it is
    /// told as always.
    pub(super) fn give_up(&mut self, write: u64) -> bool {
        let is_given_up = self.tickets.get(&write).is_some_and(WriteTicket::give_up);
        if is_given_up {
            self.tickets.remove(&write);
        }
        is_given_up
    }

    /// Waits until a write is over that [`ended`](Self::ended) returns, for `us` microseconds at most.
    pub(super) fn wait(&self, us: u64) {
        self.parker.park_timeout(Duration::from_micros(us));
    }

    /// The writes that are over. One that was given up before is not told of again.
    pub(super) fn ended(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Ok(Told { write, key, handle, bytes, buffer, outcome }) = self.told.try_recv() {
            self.spare.extend(buffer);
            if self.tickets.remove(&write).is_none() {
                tracing::info!(?key, "a drive has ended a write that was given up");
                continue;
            }
            let what = match outcome {
                Some(Ok(())) => What::Written { bytes, key, handle },
                Some(Err(error)) => {
                    tracing::warn!(?key, "a block is not backed up: {error}");
                    What::Refused(RefusedBy::Failed)
                }
                None => {
                    tracing::warn!(?key, "a block is not backed up: its drive has stopped");
                    What::Refused(RefusedBy::Failed)
                }
            };
            ended.push(Ended { write, what });
        }
        ended
    }
}
