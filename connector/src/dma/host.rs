//! The processor as a DMA engine: one copy each way, the checksum in the same pass.

use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::units::{Extent, LINE_BYTES, LineRange};

use super::checksum::RunningChecksum;
use super::job::{check_layer, check_layers};
use super::layers::store_each;
use super::refresh_ahead::{BLOCK_BYTES, RefreshAhead, blocks};
use super::{Checksum, DmaEngine, DmaError, LayeredSource, Layers, LoadJob, StoreJob};

#[cfg(target_arch = "aarch64")]
use super::host_copy_aarch64 as copy;
#[cfg(target_arch = "x86_64")]
use super::host_copy_x86_64 as copy;

/// Bytes in a line, as a length in memory.
const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);

/// How a store knows that its payload has reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Every line is read back after the fence: MEM-M2 in read-back mode, for platforms of which
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
/// use rackline::dma::{DmaEngine, HostDma, LoadJob, StoreJob};
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

    #[cfg(feature = "cuda")]
    /// The memory it copies to and from.
    pub(super) fn fabric(&self) -> &MappedFabric {
        &self.fabric
    }

    /// Has what was stored to `payloads` arrive at the device (MEM-M9, MEM-M2).
    fn make_arrive<'p>(&self, payloads: impl Iterator<Item = &'p Extent> + Clone) {
        let stored = || payloads.clone().map(|payload| LineRange::covering(*payload));
        if !copy::STORES_BYPASS_CACHES {
            stored().for_each(|lines| self.fabric.write_back(lines));
        }
        self.fabric.fence();
        if self.arrival == Arrival::ReadBack {
            stored().for_each(|lines| self.fabric.read_back(lines));
        }
    }

    #[cfg(feature = "cuda")]
    /// Writes back what a device's write to `lines` may have left in this host's caches (MEM-M9). It
    /// has arrived after [`arrive`](Self::arrive).
    pub(super) fn write_back(&self, lines: Extent) {
        self.fabric.write_back(LineRange::covering(lines));
    }

    #[cfg(feature = "cuda")]
    /// Has what was written back of `lines` arrive at the memory (MEM-M2).
    pub(super) fn arrive(&self, lines: impl Iterator<Item = Extent>) {
        self.fabric.fence();
        lines.for_each(|lines| self.fabric.read_back(LineRange::covering(lines)));
    }

    #[cfg(feature = "cuda")]
    /// Drops this host's copies of `lines` before a device reads them, through the caches or not
    /// (MEM-M9).
    pub(super) fn refresh(&self, lines: impl Iterator<Item = Extent>) {
        lines.for_each(|lines| self.fabric.invalidate(LineRange::covering(lines)));
        self.fabric.fence();
    }

    #[cfg(feature = "cuda")]
    /// The checksum of a payload as the device has it, read past this host's caches. The payload
    /// lies in the region, on lines.
    pub(super) fn checksum(&self, payload: Extent) -> Checksum {
        let mut checksum = RunningChecksum::new();
        self.read(payload, &mut checksum, |_| ());
        checksum.finish()
    }

    #[cfg(feature = "cuda")]
    /// Reads the next lines of a payload as the device has them, past this host's caches, and adds
    /// them to its checksum; `bytes` gets them piece by piece.
    pub(super) fn read(
        &self,
        lines: Extent,
        checksum: &mut RunningChecksum,
        mut bytes: impl FnMut(&[u8]),
    ) {
        let mut ahead = RefreshAhead::new(&self.fabric, blocks(lines));
        let stream = copy::LineStream::new(self.fabric.mapping());
        let mut read = copy::Block([0; BLOCK_BYTES]);
        for block in blocks(lines) {
            let fenced_end_bytes = fenced_end_bytes(lines, block, ahead.admit());
            stream.load(block, fenced_end_bytes, &mut read, checksum);
            bytes(&read.0[..length(block)]);
        }
        drop(stream);
        // What is told of these lines comes after every load above.
        self.fabric.fence();
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
        let gather = |payload: Extent, parts: &[&[u8]]| {
            let mut gather = Gather::new(payload);
            parts.iter().for_each(|part| gather.part(&stream, part));
            gather.finish(&stream)
        };
        let results = each.map(|(checked, job)| Ok(gather(checked.clone()?, job.parts))).collect();
        drop(stream);
        self.make_arrive(checked.iter().flatten());
        results
    }

    fn load(&self, jobs: &mut [LoadJob<&mut [u8]>]) -> Vec<Result<Checksum, DmaError>> {
        let checked: Vec<_> = jobs.iter().map(|job| job.check(self.fabric.bytes())).collect();
        let all_blocks = checked.iter().flatten().flat_map(|payload| blocks(*payload));
        let mut ahead = RefreshAhead::new(&self.fabric, all_blocks);
        let stream = copy::LineStream::new(self.fabric.mapping());
        let mut read = copy::Block([0; BLOCK_BYTES]);
        let mut results = Vec::with_capacity(jobs.len());
        for (checked, job) in checked.iter().zip(jobs) {
            results.push(checked.clone().map(|payload| {
                let mut scatter = Scatter::new(job.parts.iter_mut().map(|part| &mut **part));
                for block in blocks(payload) {
                    let fenced_end_bytes = fenced_end_bytes(payload, block, ahead.admit());
                    scatter.block(&stream, block, fenced_end_bytes, &mut read);
                }
                scatter.checksum.finish()
            }));
        }
        drop(stream);
        // The second look at the descriptor comes after every load above.
        self.fabric.fence();
        results
    }

    fn load_by_layers(
        &self,
        jobs: Vec<LoadJob<&mut [u8]>>,
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.fabric.bytes();
        let mut loading: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                let payload = job.check_layers(layers, region_bytes)?;
                Ok((payload, Scatter::new(job.parts.into_iter())))
            })
            .collect();
        let payloads: Vec<_> = loading.iter().flatten().map(|(payload, _)| *payload).collect();
        let payloads = payloads.as_slice();
        let all_blocks = (0..layers.count()).flat_map(|layer| {
            payloads.iter().flat_map(move |payload| blocks(layers.read_with(*payload, layer)))
        });
        let mut ahead = RefreshAhead::new(&self.fabric, all_blocks);
        let stream = copy::LineStream::new(self.fabric.mapping());
        let mut read = copy::Block([0; BLOCK_BYTES]);
        for layer in 0..layers.count() {
            for (payload, scatter) in loading.iter_mut().flatten() {
                let part = layers.read_with(*payload, layer);
                for block in blocks(part) {
                    let fenced_end_bytes = fenced_end_bytes(part, block, ahead.admit());
                    scatter.block(&stream, block, fenced_end_bytes, &mut read);
                }
            }
            // Before other threads hear of it.
            stream.order();
            arrived(layer);
        }
        drop(stream);
        // The second look at the descriptor comes after every load above.
        self.fabric.fence();
        let loaded = loading.into_iter();
        loaded.map(|loaded| loaded.map(|(_, scatter)| scatter.checksum.finish())).collect()
    }

    fn store_by_layers(
        &self,
        payloads: &[Extent],
        layers: &Layers,
        source: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>> {
        let mut storing = self.begin_layers(payloads, layers);
        let stored = store_each(layers, payloads.len(), source, &mut |layer, parts| {
            storing.store(layer, parts);
        });
        stored.then(|| storing.finish())
    }
}

/// Payloads of which one layer after the other is stored.
pub(super) struct LayeredStore<'d> {
    dma: &'d HostDma,
    layers: &'d Layers,
    stream: copy::LineStream<'d>,
    storing: Vec<Result<(Extent, Gather), DmaError>>,
}

impl HostDma {
    /// Nothing is stored yet.
    pub(super) fn begin_layers<'d>(
        &'d self,
        payloads: &[Extent],
        layers: &'d Layers,
    ) -> LayeredStore<'d> {
        let storing = payloads.iter().map(|payload| {
            let payload = check_layers(*payload, layers, self.fabric.bytes())?;
            Ok((payload, Gather::new(payload)))
        });
        let stream = copy::LineStream::new(self.fabric.mapping());
        LayeredStore { dma: self, layers, storing: storing.collect(), stream }
    }
}

impl LayeredStore<'_> {
    /// Stores the next layer, of which `parts` has the bytes for each payload.
    pub(super) fn store(&mut self, layer: usize, parts: &[Vec<&[u8]>]) {
        for (storing, parts) in self.storing.iter_mut().zip(parts) {
            let Ok((payload, gather)) = storing else { continue };
            match check_layer(*payload, self.layers.layer_bytes(layer), parts) {
                Ok(()) => parts.iter().for_each(|part| gather.part(&self.stream, part)),
                Err(error) => *storing = Err(error),
            }
        }
    }

    /// All layers were stored.
    pub(super) fn finish(self) -> Vec<Result<Checksum, DmaError>> {
        let Self { dma, stream, storing, .. } = self;
        let mut stored = Vec::with_capacity(storing.len());
        let results = storing.into_iter().map(|storing| {
            let (payload, gather) = storing?;
            stored.push(payload);
            Ok(gather.finish(&stream))
        });
        let results = results.collect();
        drop(stream);
        dma.make_arrive(stored.iter());
        results
    }
}

/// Bytes on their way into consecutive lines. A line is stored whole or not at all, so one that
/// spans parts waits until it is complete.
struct Gather {
    /// Where the next line goes.
    at_bytes: u64,
    line: [u8; LINE],
    /// Bytes of `line` that are there.
    filled: usize,
    checksum: RunningChecksum,
}

impl Gather {
    /// From the start of `payload` on.
    fn new(payload: Extent) -> Self {
        let checksum = RunningChecksum::new();
        Self { at_bytes: payload.offset(), line: [0; LINE], filled: 0, checksum }
    }

    fn part(&mut self, stream: &copy::LineStream<'_>, mut part: &[u8]) {
        if self.filled > 0 {
            let (fill, rest) = part.split_at(part.len().min(LINE - self.filled));
            self.line[self.filled..self.filled + fill.len()].copy_from_slice(fill);
            self.filled += fill.len();
            if self.filled < LINE {
                return;
            }
            stream.store(self.at_bytes, &self.line, &mut self.checksum);
            self.at_bytes += LINE_BYTES;
            part = rest;
        }
        let (lines, rest) = part.split_at(part.len() - part.len() % LINE);
        stream.store(self.at_bytes, lines, &mut self.checksum);
        self.at_bytes += lines.len() as u64;
        self.line[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// The last line is completed with zeros, which are not checked.
    fn finish(mut self, stream: &copy::LineStream<'_>) -> Checksum {
        self.checksum.add(&self.line[..self.filled]);
        if self.filled > 0 {
            self.line[self.filled..].fill(0);
            stream.store(self.at_bytes, &self.line, &mut RunningChecksum::new());
        }
        self.checksum.finish()
    }
}

/// Bytes on their way from a payload into parts. It borrows what is not filled yet, and nothing
/// else: a layer that was said to be there is read by others.
struct Scatter<'a, P> {
    parts: P,
    /// What is left of the part at hand.
    part: &'a mut [u8],
    checksum: RunningChecksum,
}

impl<'a, P: Iterator<Item = &'a mut [u8]>> Scatter<'a, P> {
    fn new(parts: P) -> Self {
        Self { parts, part: &mut [], checksum: RunningChecksum::new() }
    }

    /// The next block of the payload, which is read from shared memory once: what is checked is what
    /// the parts get. It goes through `read` unless it comes to one place that starts on a line.
    fn block(
        &mut self,
        stream: &copy::LineStream<'_>,
        block: Extent,
        fenced_end_bytes: u64,
        read: &mut copy::Block,
    ) {
        let bytes = length(block);
        self.find_part();
        if bytes <= self.part.len()
            && stream.load_through(block, fenced_end_bytes, self.part, &mut self.checksum)
        {
            self.part = &mut std::mem::take(&mut self.part)[bytes..];
            return;
        }
        stream.load(block, fenced_end_bytes, read, &mut self.checksum);
        self.spill(stream, &read.0[..bytes]);
    }

    /// Goes on to the next part that has room, if there is one.
    fn find_part(&mut self) {
        while self.part.is_empty() {
            let Some(part) = self.parts.next() else { return };
            self.part = part;
        }
    }

    fn spill(&mut self, stream: &copy::LineStream<'_>, mut from: &[u8]) {
        while !from.is_empty() {
            self.find_part();
            assert!(!self.part.is_empty(), "parts are as long as their payload");
            let now = from.len().min(self.part.len());
            let (part, rest) = std::mem::take(&mut self.part).split_at_mut(now);
            stream.spill(&from[..now], part);
            self.part = rest;
            from = &from[now..];
        }
    }
}

#[cfg(test)]
mod tests;
