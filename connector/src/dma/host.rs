//! The processor as a DMA engine: one copy each way, the checksum in the same pass.

use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::units::{Extent, LINE_BYTES, LineRange};

use super::checksum::RunningChecksum;
use super::refresh_ahead::{BLOCK_BYTES, RefreshAhead, blocks};
use super::{Checksum, DmaEngine, DmaError, LoadJob, StoreJob};

#[cfg(target_arch = "aarch64")]
use super::host_copy_aarch64 as copy;
#[cfg(target_arch = "x86_64")]
use super::host_copy_x86_64 as copy;

/// Bytes that are stored and then checked: small enough to be in the caches still, so that the
/// source is fetched from memory once.
const STORE_BLOCK_BYTES: usize = 8192;
/// Bytes in a line, as a length in memory.
const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);

/// How a store knows that its payload has reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Every line is read back after the fence: M2 in read-back mode, for platforms of which
    /// nobody has shown that a fence waits for the device. Costs about 40 % of the speed of a
    /// store. Where the fabric is qualified to need no read-back it does nothing.
    ReadBack,
    /// The fence is trusted. Right on platforms whose fence waits for the device. On others a host
    /// that refreshes a payload just announced may find old lines in it, which its checksum tells:
    /// choose this only where every reader verifies it, and a late line costs a miss.
    Fence,
}

/// Copies with this thread's processor, straight between the caller's parts and the mapping.
///
/// A store goes around the caches; a load drops lines a window ahead of where it reads. Parts may
/// have any length and alignment; whole lines at aligned addresses are fastest.
///
/// # Example
/// ```
/// use connector::dma::{DmaEngine, HostDma, LoadJob, StoreJob};
/// use cxl_shm::fabric::{MappedFabric, Mapping};
/// use cxl_shm::units::Extent;
///
/// let file = tempfile::tempfile()?;
/// file.set_len(8192)?;
/// let dma = HostDma::new(MappedFabric::new(Mapping::shared(&file, 8192)?)?);
///
/// let payload = Extent::new(4096, 11).unwrap();
/// let stored = dma.store(&[StoreJob { payload, parts: &[b"hello ", b"world"] }]);
/// let mut bytes = [0; 11];
/// let loaded = dma.load(&mut [LoadJob { payload, parts: vec![&mut bytes] }]);
/// assert_eq!(stored, loaded, "the same checksum");
/// assert_eq!(&bytes, b"hello world");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostDma {
    fabric: MappedFabric,
    arrival: Arrival,
}

impl HostDma {
    /// An engine over the memory of `fabric` that reads back what it stored.
    #[must_use]
    pub fn new(fabric: MappedFabric) -> Self {
        Self::with_arrival(fabric, Arrival::ReadBack)
    }

    /// An engine that makes sure of arrival in the way given.
    #[must_use]
    pub fn with_arrival(fabric: MappedFabric, arrival: Arrival) -> Self {
        Self { fabric, arrival }
    }

    /// The memory it copies to and from.
    pub(super) fn fabric(&self) -> &MappedFabric {
        &self.fabric
    }

    /// The checksum of each payload as the device has it, read past this host's caches. The
    /// payloads lie in the region, on lines.
    pub(super) fn checksums(&self, payloads: &[Extent]) -> Vec<Checksum> {
        let all_blocks = payloads.iter().flat_map(|payload| blocks(*payload));
        let mut ahead = RefreshAhead::new(&self.fabric, all_blocks);
        let stream = copy::LineStream::new(self.fabric.mapping());
        let mut read = copy::Block([0; BLOCK_BYTES]);
        let checksum_of = |payload: &Extent| {
            let mut checksum = RunningChecksum::new();
            for block in blocks(*payload) {
                stream.load(block, fenced_end_bytes(*payload, block, ahead.admit()), &mut read);
                checksum.add(&read.0[..length(block)]);
            }
            checksum.finish()
        };
        let checksums = payloads.iter().map(checksum_of).collect();
        // What is told of these payloads comes after every load above.
        self.fabric.fence();
        checksums
    }
}

/// How far from `block` on its payload may be read, when `readable` blocks may.
fn fenced_end_bytes(payload: Extent, block: Extent, readable: usize) -> u64 {
    payload.end().min(block.offset() + (readable * BLOCK_BYTES) as u64)
}

fn length(block: Extent) -> usize {
    usize::try_from(block.bytes()).expect("a block is short")
}

impl DmaEngine for HostDma {
    type Source<'a> = &'a [u8];
    type Destination<'a> = &'a mut [u8];

    fn store(&self, jobs: &[StoreJob<'_>]) -> Vec<Result<Checksum, DmaError>> {
        let checked: Vec<_> = jobs.iter().map(|job| job.check(self.fabric.bytes())).collect();
        let stream = copy::LineStream::new(self.fabric.mapping());
        let each = checked.iter().zip(jobs);
        let results =
            each.map(|(checked, job)| Ok(gather(&stream, checked.clone()?, job.parts))).collect();
        drop(stream);

        let stored = || checked.iter().flatten().map(|payload| LineRange::covering(*payload));
        if !copy::STORES_BYPASS_CACHES {
            stored().for_each(|lines| self.fabric.write_back(lines));
        }
        self.fabric.fence();
        if self.arrival == Arrival::ReadBack {
            stored().for_each(|lines| self.fabric.read_back(lines));
        }
        results
    }

    fn load(&self, jobs: &mut [LoadJob<&mut [u8]>]) -> Vec<Result<Checksum, DmaError>> {
        let checked: Vec<_> = jobs.iter().map(|job| job.check(self.fabric.bytes())).collect();
        let all_blocks = checked.iter().flatten().flat_map(|payload| blocks(*payload));
        let mut ahead = RefreshAhead::new(&self.fabric, all_blocks);
        let stream = copy::LineStream::new(self.fabric.mapping());
        let mut results = Vec::with_capacity(jobs.len());
        for (checked, job) in checked.iter().zip(jobs) {
            results.push(checked.clone().map(|payload| {
                let mut scatter = Scatter::new(&stream, &mut job.parts);
                for block in blocks(payload) {
                    scatter.block(block, fenced_end_bytes(payload, block, ahead.admit()));
                }
                scatter.checksum.finish()
            }));
        }
        drop(stream);
        // The second look at the descriptor comes after every load above.
        self.fabric.fence();
        results
    }
}

/// Stores `parts` to `payload`, one after another.
fn gather(stream: &copy::LineStream<'_>, payload: Extent, parts: &[&[u8]]) -> Checksum {
    let mut checksum = RunningChecksum::new();
    let mut gather = Gather { stream, at_bytes: payload.offset(), line: [0; LINE], filled: 0 };
    for part in parts {
        for block in part.chunks(STORE_BLOCK_BYTES) {
            gather.add(block);
            checksum.add(block);
        }
    }
    gather.finish();
    checksum.finish()
}

/// Bytes on their way into consecutive lines. A line is stored whole or not at all, so one that
/// spans parts waits until it is complete.
struct Gather<'s, 'm> {
    stream: &'s copy::LineStream<'m>,
    /// Where the next line goes.
    at_bytes: u64,
    line: [u8; LINE],
    /// Bytes of `line` that are there.
    filled: usize,
}

impl Gather<'_, '_> {
    fn add(&mut self, mut bytes: &[u8]) {
        if self.filled > 0 {
            let (fill, rest) = bytes.split_at(bytes.len().min(LINE - self.filled));
            self.line[self.filled..self.filled + fill.len()].copy_from_slice(fill);
            self.filled += fill.len();
            if self.filled < LINE {
                return;
            }
            self.store_line();
            bytes = rest;
        }
        let (lines, rest) = bytes.split_at(bytes.len() - bytes.len() % LINE);
        self.stream.store(self.at_bytes, lines);
        self.at_bytes += lines.len() as u64;
        self.line[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// The last line is completed with zeros.
    fn finish(mut self) {
        if self.filled > 0 {
            self.line[self.filled..].fill(0);
            self.store_line();
        }
    }

    fn store_line(&mut self) {
        self.stream.store(self.at_bytes, &self.line);
        self.at_bytes += LINE_BYTES;
        self.filled = 0;
    }
}

/// Bytes on their way from consecutive blocks into parts.
struct Scatter<'s, 'm, 'p, 'a> {
    stream: &'s copy::LineStream<'m>,
    parts: std::slice::IterMut<'p, &'a mut [u8]>,
    /// What is left of the part at hand.
    part: &'p mut [u8],
    block: copy::Block,
    checksum: RunningChecksum,
}

impl<'s, 'm, 'p, 'a> Scatter<'s, 'm, 'p, 'a> {
    fn new(stream: &'s copy::LineStream<'m>, parts: &'p mut [&'a mut [u8]]) -> Self {
        Self {
            stream,
            parts: parts.iter_mut(),
            part: &mut [],
            block: copy::Block([0; BLOCK_BYTES]),
            checksum: RunningChecksum::new(),
        }
    }

    /// The next block of the payload. It is read from shared memory once: what is checked is what
    /// the parts get.
    fn block(&mut self, block: Extent, fenced_end_bytes: u64) {
        self.stream.load(block, fenced_end_bytes, &mut self.block);
        let mut from = &self.block.0[..length(block)];
        self.checksum.add(from);
        while !from.is_empty() {
            if self.part.is_empty() {
                self.part = self.parts.next().expect("parts are as long as their payload");
                continue;
            }
            let now = from.len().min(self.part.len());
            let (part, rest) = std::mem::take(&mut self.part).split_at_mut(now);
            self.stream.spill(&from[..now], part);
            self.part = rest;
            from = &from[now..];
        }
    }
}

#[cfg(test)]
mod tests;
