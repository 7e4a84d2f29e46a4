//! Memory of an engine: blocks at addresses, of this process or of a GPU.
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rackline::memory::{
    Access, LendError, Lending, LentBlocks, LentDestination, LentPart, LentSource, MemoryOf, Span,
};
use rackline::{Layers, ProcessMark};

use crate::error::{Forked, error};

/// Blocks in the memory of this process, or of GPU number `gpu`. Block `b` is, for each part in
/// order, the `bytes` bytes at `address + b * stride`.
///
/// The caller that makes one guarantees that this memory exists for as long as `owner` does, and
/// that nothing else writes a block while a transfer of it is under way, nor reads it while it is
/// fetched; of a transfer by layers, a layer that is ready, or that has not arrived.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct BlockMemory {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    parts: Vec<Part>,
    /// For each layer, which of the parts are its own.
    layers: Vec<Range<usize>>,
    blocks: u32,
    block_bytes: u64,
    /// The GPU whose memory it is; none for memory that the processor reads and writes.
    gpu: Option<usize>,
    /// Which memory of this process is in transfers, by its addresses.
    lending: Arc<Lending>,
    /// PYTHON-Y3.
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
        let (parts, lending) = (checked, lending_of_this_process());
        let inner = Inner { parts, layers, blocks, block_bytes, gpu, lending, _owner: owner };
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

/// A block that a transfer reads. It keeps the memory.
pub(crate) type ReadBlock = LentSource<Arc<Inner>>;

/// A block that a transfer writes. It keeps the memory.
pub(crate) type WriteBlock = LentDestination<Arc<Inner>>;

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
    pub(crate) fn read(&self, py: Python<'_>, numbers: &[u32]) -> PyResult<Vec<ReadBlock>> {
        let lent = py.detach(|| self.lend(numbers, Access::Read))?;
        // SAFETY: the maker of the memory vouches for it while its owner lives, which the blocks
        // keep alive (PYTHON-Y3), and that nothing writes it meanwhile; a session gives blocks of a
        // GPU's memory to no other GPU, and orders their copies after the stream that may still
        // write them.
        Ok(unsafe { lent.into_sources() })
    }

    /// The blocks of these numbers, to be fetched into.
    pub(crate) fn write(&self, py: Python<'_>, numbers: &[u32]) -> PyResult<Vec<WriteBlock>> {
        let lent = py.detach(|| self.lend(numbers, Access::Write))?;
        // SAFETY: as above, and nothing else reads or writes it: a block that is written is in no
        // other transfer (PYTHON-Y2), and its user reads a layer when it has arrived. No two of the
        // parts overlap: the loan is refused then.
        Ok(unsafe { lent.into_destinations() })
    }

    /// Lends the blocks of these numbers to one transfer (PYTHON-Y2): hundreds of thousands of parts of
    /// a long prompt. Called without Python's lock (PYTHON-Y1).
    fn lend(&self, numbers: &[u32], access: Access) -> PyResult<LentBlocks<Arc<Inner>>> {
        let Inner { parts, layers, blocks, gpu, lending, .. } = &*self.inner;
        if let Some(number) = numbers.iter().find(|number| *number >= blocks) {
            return Err(error(format!("there is no block {number}: the memory has {blocks}")));
        }
        // Part by part: the spans of one array are in order, as the numbers usually are.
        let spans = parts.iter().flat_map(|part| numbers.iter().map(|number| part.span(*number)));
        let loan =
            lending.lend(spans, access).map_err(|refused| self.refused(&refused, numbers))?;
        let lent = numbers.iter().flat_map(|number| parts.iter().map(|part| part.of(*number)));
        let lent = lent.collect();
        let of = if gpu.is_some() { MemoryOf::Gpu } else { MemoryOf::Process };
        let (parts_a_block, layers) = (parts.len(), layers.clone());
        let keeps = Arc::clone(&self.inner);
        Ok(LentBlocks { parts: lent, parts_a_block, layers, of, loan, keeps })
    }
}

impl Part {
    /// This part of block `number`.
    fn of(&self, number: u32) -> LentPart {
        LentPart { address: self.address + number as usize * self.stride, bytes: self.bytes }
    }

    fn span(&self, number: u32) -> Span {
        let part = self.of(number);
        part.address..part.address + part.bytes
    }
}

impl BlockMemory {
    /// The exception for blocks of `numbers` that are not lent.
    fn refused(&self, refused: &LendError, numbers: &[u32]) -> PyErr {
        match refused {
            LendError::Overlap { second, .. } => match twice(numbers) {
                Some(number) => error(format!(
                    "one fetch cannot write block {number} twice: name each block once"
                )),
                None => error(format!(
                    "the arrays of this memory overlap in block {}: pass arrays that do not",
                    self.block_at(second.start, numbers)
                )),
            },
            LendError::Taken { wanted, taken, .. } => error(format!(
                "block {} is in another transfer: wait for that transfer first",
                self.block_at(wanted.start.max(taken.start), numbers)
            )),
            LendError::Forked => Forked::new_err(
                "this process is a forked child of the process that made this memory: attach again \
                 in the child, and call block_memory() again",
            ),
        }
    }

    /// Which of the blocks of `numbers` has the byte at `address`.
    fn block_at(&self, address: usize, numbers: &[u32]) -> u32 {
        let has_it = |number: &&u32| {
            self.inner.parts.iter().any(|part| part.span(**number).contains(&address))
        };
        numbers.iter().find(has_it).copied().unwrap_or_default()
    }
}

/// A number that is there twice.
fn twice(numbers: &[u32]) -> Option<u32> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// One list of all memory of the process: several [`BlockMemory`]s may have the same bytes.
///
/// The caller holds Python's lock, as does every thread of Python that forks. So no child finds the
/// lock of this list held.
fn lending_of_this_process() -> Arc<Lending> {
    static LENDING: Mutex<Option<(ProcessMark, Arc<Lending>)>> = Mutex::new(None);
    let mut known = LENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let lending = match &*known {
        Some((process, lending)) if process.is_of_this() => Arc::clone(lending),
        _ => Arc::default(),
    };
    *known = Some((ProcessMark::of_this(), Arc::clone(&lending)));
    lending
}

/// The parts of each layer. `counts` says how many parts each layer has; without it all parts are
/// one layer.
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
