//! Blocks of the pool, copied into memory of the agent, on their way to a drive.

use crossbeam_channel::{Receiver, Sender, unbounded};
use kv_cache::{BlockKey, Wanted};
use kv_drive::io::Buffer;
use kv_drive::store::Store;
use kv_drive::volume::{BlockSpec, ReserveError, WriteError};
use kv_drive::{ALL_LAYERS, Encoding, Page};
use rackline::LocalCache;
use rackline::dma::{Checksum, DmaEngine, HostDma, LoadJob};

use super::Candidate;

/// Buffers that are kept for the next writes.
const SPARE_MAX: usize = 64;

/// What became of a block that was to be written.
#[derive(Debug)]
pub(super) enum Ended {
    /// So many bytes are written: the next commit makes them durable.
    Written { bytes: u64 },
    /// It left the pool, changed or was damaged before it was copied.
    Lost(BlockKey),
    /// No drive took it.
    Refused,
}

/// A write that is over: what it wrote, and the memory.
type Told = (BlockKey, u64, Option<Buffer>, Result<(), WriteError>);

/// Writes under way.
#[derive(Debug)]
pub(super) struct Writes {
    under_way: usize,
    depth: usize,
    tell: Sender<Told>,
    told: Receiver<Told>,
    spare: Vec<Buffer>,
}

impl Writes {
    pub(super) fn new(depth: usize) -> Self {
        let (tell, told) = unbounded();
        Self { under_way: 0, depth: depth.max(1), tell, told, spare: Vec::new() }
    }

    /// How many more may begin.
    pub(super) fn room(&self) -> usize {
        self.depth.saturating_sub(self.under_way)
    }

    /// Copies blocks out of the pool, and begins to write those that were whole. Returns what became
    /// of the others.
    pub(super) fn begin(
        &mut self,
        cache: &LocalCache<'_>,
        dma: &HostDma,
        store: &Store,
        blocks: &[Candidate],
    ) -> Vec<Ended> {
        let wanted: Vec<_> = blocks
            .iter()
            .map(|block| Wanted { handle: block.handle, key: block.key, bytes: block.bytes })
            .collect();
        let (mut ended, mut opened) = (Vec::new(), Vec::new());
        for (block, ticket) in blocks.iter().zip(cache.open(&wanted)) {
            let length = usize::try_from(block.bytes).unwrap_or(usize::MAX);
            match (ticket, self.buffer(length)) {
                (Ok(ticket), Ok(buffer)) => opened.push((*block, ticket, buffer, length)),
                (Err(_), _) => ended.push(Ended::Lost(block.key)),
                (Ok(_), Err(error)) => {
                    tracing::warn!("no memory for a backup: {error}");
                    ended.push(Ended::Refused);
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
        for (((block, _, buffer, _), sum), outcome) in opened.into_iter().zip(loaded).zip(closed) {
            match (sum, outcome) {
                (Ok(Checksum(crc)), Ok(())) => {
                    ended.extend(self.write(store, &block, crc, buffer).err());
                }
                (Ok(_), Err(_)) | (Err(_), _) => {
                    self.spare.push(buffer);
                    ended.push(Ended::Lost(block.key));
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

    fn write(
        &mut self,
        store: &Store,
        block: &Candidate,
        crc: u32,
        buffer: Buffer,
    ) -> Result<(), Ended> {
        let Candidate { key, bytes, depth, tag, .. } = *block;
        let length = u32::try_from(bytes).map_err(|_| Ended::Refused)?;
        // The pool does not know what its bytes mean: one page has all layers.
        let page = Page {
            fingerprint: 0,
            layout_version: 0,
            layer: ALL_LAYERS,
            first_token: 0,
            last_token: 0,
            encoding: Encoding::Raw,
            offset_bytes: 0,
            bytes: length,
            crc,
        };
        let spec = BlockSpec { key, tag, depth, bytes: length, crc, pages: &[page] };
        match store.reserve(&spec) {
            Ok((_, reservation)) => {
                let tell = self.tell.clone();
                self.under_way += 1;
                let done = move |buffer, outcome| drop(tell.send((key, bytes, buffer, outcome)));
                reservation.write(buffer, Box::new(done));
                Ok(())
            }
            Err(refused) => {
                if !matches!(refused, ReserveError::Exists) {
                    tracing::debug!(?key, "a block is not backed up: {refused}");
                }
                self.spare.push(buffer);
                Err(Ended::Refused)
            }
        }
    }

    /// The writes that are over.
    pub(super) fn ended(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Ok((key, bytes, buffer, outcome)) = self.told.try_recv() {
            self.under_way -= 1;
            self.spare.extend(buffer);
            ended.push(match outcome {
                Ok(()) => Ended::Written { bytes },
                Err(error) => {
                    tracing::warn!(?key, "a block is not backed up: {error}");
                    Ended::Refused
                }
            });
        }
        ended
    }
}
