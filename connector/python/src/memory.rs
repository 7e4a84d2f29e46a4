//! Memory of an engine: blocks at addresses, of this process or of a GPU.
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use connector::ProcessMark;
use connector::dma::Layers;
use connector::dma::cuda::{DeviceDestination, DeviceSource};
use connector::transfer::{
    Destination, GpuDestination, GpuLayerSource, GpuSource, LayerSource, Source,
};
use pyo3::prelude::*;

use crate::error::{Forked, error};

/// Blocks in the memory of this process, or of GPU number `gpu`. Block `b` is, for each part in
/// order, the `bytes` bytes at `address + b * stride`.
///
/// Whoever makes one vouches that this memory exists for as long as `owner` does, and that nothing
/// else writes a block while a transfer of it is under way, nor reads it while it is fetched; of a
/// transfer by layers, a layer that is ready, or that has not arrived.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct BlockMemory {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Vec<Part>,
    /// For each layer, which of the parts are its own.
    layers: Vec<Range<usize>>,
    blocks: u32,
    block_bytes: u64,
    /// The GPU whose memory it is; none for memory that the processor reads and writes.
    gpu: Option<usize>,
    /// Which blocks are in use, and by how many that read; 0 is one that writes.
    in_use: Mutex<HashMap<u32, u32>>,
    /// In which it was made: a child made by `fork` finds `in_use` in whatever state.
    process: ProcessMark,
    /// Y3.
    _owner: Py<PyAny>,
}

#[derive(Clone, Copy)]
struct Part {
    address: usize,
    stride: usize,
    bytes: usize,
}

#[pymethods]
impl BlockMemory {
    #[new]
    #[pyo3(signature = (parts, blocks, owner, *, gpu = None, layers = None))]
    fn new(
        parts: Vec<(usize, usize, usize)>,
        blocks: u32,
        owner: Py<PyAny>,
        gpu: Option<usize>,
        layers: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let layers = layers_of(layers, parts.len())?;
        if parts.is_empty() || blocks == 0 {
            return Err(error("memory without parts or without blocks"));
        }
        let mut block_bytes = 0u64;
        let mut checked = Vec::with_capacity(parts.len());
        for (address, stride, bytes) in parts {
            if address == 0 || bytes == 0 {
                return Err(error("a part of a block has no address or no bytes"));
            }
            if blocks > 1 && stride < bytes {
                return Err(error(format!(
                    "blocks of {bytes} bytes every {stride} bytes lie one over the other"
                )));
            }
            // The end of the last block.
            let last =
                (blocks as usize - 1).checked_mul(stride).and_then(|at| at.checked_add(bytes));
            let end = last.and_then(|bytes| address.checked_add(bytes));
            if end.is_none_or(|end| end > isize::MAX.unsigned_abs()) {
                return Err(error("the blocks reach beyond what can be addressed"));
            }
            block_bytes += bytes as u64;
            checked.push(Part { address, stride, bytes });
        }
        let (in_use, process) = (Mutex::default(), ProcessMark::of_this());
        let parts = checked;
        let inner =
            Inner { parts, layers, blocks, block_bytes, gpu, in_use, process, _owner: owner };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Length of a block in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.inner.block_bytes
    }

    /// How many layers a block has.
    #[getter]
    #[pyo3(name = "layers")]
    fn layer_count(&self) -> usize {
        self.inner.layers.len()
    }

    /// How many blocks there are.
    #[getter]
    fn blocks(&self) -> u32 {
        self.inner.blocks
    }

    /// The number of the GPU whose memory it is.
    #[getter]
    fn gpu(&self) -> Option<usize> {
        self.inner.gpu
    }
}

impl BlockMemory {
    /// Length of a block in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.block_bytes
    }

    /// The GPU whose memory it is.
    pub(crate) fn of_gpu(&self) -> Option<usize> {
        self.inner.gpu
    }

    /// How a block is cut into layers.
    pub(crate) fn layers(&self) -> Layers {
        let bytes = |parts: &Range<usize>| {
            self.inner.parts[parts.clone()].iter().map(|part| part.bytes as u64).sum()
        };
        Layers::new(self.inner.layers.iter().map(bytes))
    }

    /// The blocks of these numbers, to be published.
    pub(crate) fn read(&self, numbers: &[u32]) -> PyResult<Vec<ReadBlock>> {
        let take = |number: &u32| Inner::take(&self.inner, *number, false).map(ReadBlock);
        numbers.iter().map(take).collect()
    }

    /// The blocks of these numbers, to be fetched into.
    pub(crate) fn write(&self, numbers: &[u32]) -> PyResult<Vec<WriteBlock>> {
        let take = |number: &u32| Inner::take(&self.inner, *number, true).map(WriteBlock);
        numbers.iter().map(take).collect()
    }
}

/// A block that is in use. Given back when dropped.
struct InUse {
    memory: Arc<Inner>,
    number: u32,
}

/// A block that a transfer reads.
pub(crate) struct ReadBlock(InUse);

/// A block that a transfer writes.
pub(crate) struct WriteBlock(InUse);

impl Inner {
    fn take(memory: &Arc<Self>, number: u32, writes: bool) -> PyResult<InUse> {
        if number >= memory.blocks {
            let blocks = memory.blocks;
            return Err(error(format!("there is no block {number}: the memory has {blocks}")));
        }
        let Some(mut in_use) = memory.in_use() else {
            return Err(Forked::new_err(
                "this process is a forked child of the one that made this memory: attach again in the \
                 child, and make it anew",
            ));
        };
        match in_use.entry(number) {
            Entry::Vacant(vacant) => {
                vacant.insert(u32::from(!writes));
            }
            Entry::Occupied(mut readers) if !writes && *readers.get() > 0 => {
                *readers.get_mut() += 1;
            }
            Entry::Occupied(_) => {
                return Err(error(format!(
                    "block {number} is in another transfer: wait for that one first"
                )));
            }
        }
        drop(in_use);
        Ok(InUse { memory: Arc::clone(memory), number })
    }

    /// None in a child made by `fork`.
    fn in_use(&self) -> Option<MutexGuard<'_, HashMap<u32, u32>>> {
        let lock = || self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.is_of_this().then(lock)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(mut in_use) = self.memory.in_use() else { return };
        if let Entry::Occupied(mut readers) = in_use.entry(self.number) {
            if *readers.get() > 1 {
                *readers.get_mut() -= 1;
            } else {
                readers.remove();
            }
        }
    }
}

impl InUse {
    /// That it is memory of this process. A block of a GPU has other addresses, and is never given to
    /// a transfer that the processor copies.
    fn check_memory_of_process(&self) {
        assert!(self.memory.gpu.is_none(), "the processor cannot copy memory of a GPU");
    }

    /// Address and length of each part.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places_of(&self.memory.parts)
    }

    fn parts_of_layer(&self, layer: usize) -> &[Part] {
        &self.memory.parts[self.memory.layers[layer].clone()]
    }

    fn places_of<'p>(&self, parts: &'p [Part]) -> impl Iterator<Item = (usize, usize)> + use<'p> {
        let number = self.number as usize;
        parts.iter().map(move |part| (part.address + number * part.stride, part.bytes))
    }
}

/// Which parts are those of each layer, of which `counts` says how many it has: one layer of them all
/// when it does not.
fn layers_of(counts: Option<Vec<usize>>, parts: usize) -> PyResult<Vec<Range<usize>>> {
    let counts = counts.unwrap_or_else(|| vec![parts]);
    let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    if counts.contains(&0) || sum != Some(parts) {
        return Err(error(format!(
            "the layers must have one part at least each, and {parts} in all"
        )));
    }
    let starts = counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count)));
    Ok(starts.zip(&counts).map(|(start, count)| start..start + count).collect())
}

impl Source for ReadBlock {
    fn parts(&self) -> Vec<&[u8]> {
        self.0.check_memory_of_process();
        let part = |(address, bytes)| {
            // SAFETY: it is memory of this process, checked above. Who made it vouches for it while
            // its owner lives, which this block keeps alive (Y3), and that nobody writes it meanwhile.
            // No transfer of ours does: while one reads a block none writes it (Y2). The end was checked
            // when it was made.
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) }
        };
        self.0.places().map(part).collect()
    }
}

impl LayerSource for ReadBlock {
    fn layer(&self, layer: usize) -> Vec<&[u8]> {
        self.0.check_memory_of_process();
        let part = |(address, bytes)| {
            // SAFETY: as above, of a layer that is ready: who said so vouches that nobody writes it.
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) }
        };
        self.0.places_of(self.0.parts_of_layer(layer)).map(part).collect()
    }
}

impl Destination for WriteBlock {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        self.0.check_memory_of_process();
        let part = |(address, bytes)| {
            let address = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as above, and nobody else reads or writes it: a block that is written is in no
            // other transfer (Y2), and its user reads a layer when it has arrived, which is when the
            // transfer has let go of the bytes of it (`Destination`). Parts of one block that lie over
            // one another were made by who vouched that they do not.
            unsafe { std::slice::from_raw_parts_mut(address, bytes) }
        };
        self.0.places().map(part).collect()
    }
}

impl GpuSource for ReadBlock {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, of the GPU that the memory was made for; the session gives it to no
            // other. What the engine's stream still writes is what the transfer comes after.
            unsafe { DeviceSource::new(address as u64, bytes) }
        };
        self.0.places().map(part).collect()
    }
}

impl GpuLayerSource for ReadBlock {
    fn layer(&self, layer: usize) -> Vec<DeviceSource<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, of a layer that is ready: what the stream still writes that it was said
            // with is what the copy comes after, and who said so vouches that nobody else does.
            unsafe { DeviceSource::new(address as u64, bytes) }
        };
        self.0.places_of(self.0.parts_of_layer(layer)).map(part).collect()
    }
}

impl GpuDestination for WriteBlock {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, and nobody else reads or writes it (Y2) but what the engine's stream
            // was given before, which the transfer comes after; of a transfer by layers, until a layer has
            // arrived, whose copy is over by then.
            unsafe { DeviceDestination::new(address as u64, bytes) }
        };
        self.0.places().map(part).collect()
    }
}
