//! Memory of an engine: blocks at addresses, of this process or of a GPU.
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rackline::memory::{
    Access, LendError, Lending, LentBlocks, LentDestination, LentSource, MemoryOf, Shape,
    StridedBlocks, StridedPart,
};
use rackline::{Layers, ProcessMark};

use crate::error::{Forked, error};
use crate::listed::Listed;

/// Blocks in the memory of this process, or of GPU number `gpu`, in rows of `steps` blocks. Block `b`
/// is, for each part in order, the `bytes` bytes at
/// `address + (b / steps) * stride + (b % steps) * step`.
///
/// The caller that makes one guarantees that this memory exists for as long as `owner` does, and
/// that nothing else writes a block while a transfer of it is under way, nor reads it while it is
/// fetched; of a transfer by layers, a layer that is ready, or that has not arrived.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct BlockMemory {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    blocks: StridedBlocks,
    /// The GPU whose memory it is; none for memory that the processor reads and writes.
    gpu: Option<usize>,
    /// Which memory of this process is in transfers, by its addresses.
    lending: Arc<Lending>,
    /// PYTHON-Y3.
    _owner: Py<PyAny>,
}

/// A part of every block, as Python gives it.
#[derive(FromPyObject)]
enum Part {
    /// Address, stride, step and length in bytes.
    InRows(usize, usize, usize, usize),
    /// Without a step: for rows of one block.
    Plain(usize, usize, usize),
}

impl From<Part> for StridedPart {
    fn from(part: Part) -> Self {
        match part {
            Part::InRows(address, stride, step, bytes) => Self { address, stride, step, bytes },
            Part::Plain(address, stride, bytes) => Self { address, stride, step: 0, bytes },
        }
    }
}

#[pymethods]
impl BlockMemory {
    #[new]
    #[pyo3(signature = (
        parts, blocks, owner, *, gpu = None, layers = None, cuts = 1, steps = 1, within = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        parts: Listed<Part>,
        blocks: u32,
        owner: Py<PyAny>,
        gpu: Option<usize>,
        layers: Option<Listed<usize>>,
        cuts: usize,
        steps: u32,
        within: Option<Listed<(usize, usize)>>,
    ) -> PyResult<Self> {
        let span = |(address, bytes): (usize, usize)| address..address.saturating_add(bytes);
        let within = within.map(|within| within.0.into_iter().map(span).collect());
        let parts: Vec<StridedPart> = parts.0.into_iter().map(Into::into).collect();
        let layers = layers.map(|layers| layers.0);
        let shape = Shape { blocks, steps, cuts, layers, within };
        let blocks = StridedBlocks::new(&parts, &shape).map_err(error)?;
        let lending = lending_of_this_process();
        Ok(Self { inner: Arc::new(Inner { blocks, gpu, lending, _owner: owner }) })
    }

    /// Length of a cut of a block in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.inner.blocks.block_bytes()
    }

    /// How many layers a block has.
    #[getter]
    #[pyo3(name = "layers")]
    fn layer_count(&self) -> usize {
        self.inner.blocks.layer_bytes().len()
    }

    /// How many blocks there are.
    #[getter]
    fn blocks(&self) -> u32 {
        self.inner.blocks.blocks()
    }

    /// How many cuts a block has.
    #[getter]
    #[pyo3(name = "cuts")]
    pub(crate) fn cut_count(&self) -> usize {
        self.inner.blocks.cuts()
    }

    /// How many blocks a row has.
    #[getter]
    fn steps(&self) -> u32 {
        self.inner.blocks.steps()
    }

    /// The number of the GPU whose memory it is.
    #[getter]
    pub(crate) fn gpu(&self) -> Option<usize> {
        self.inner.gpu
    }
}

/// A block that a transfer reads. It keeps the memory.
pub(crate) type ReadBlock = LentSource<Arc<Inner>>;

/// A block that a transfer writes. It keeps the memory.
pub(crate) type WriteBlock = LentDestination<Arc<Inner>>;

impl BlockMemory {
    /// Length of a cut of a block in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.blocks.block_bytes()
    }

    /// How a cut of a block is divided into layers.
    pub(crate) fn layers(&self) -> Layers {
        Layers::new(self.inner.blocks.layer_bytes().iter().copied())
    }

    /// All cuts of the blocks of these numbers, to be published: the cuts of the first block, then those
    /// of the second.
    pub(crate) fn read(&self, py: Python<'_>, numbers: &[u32]) -> PyResult<Vec<ReadBlock>> {
        let cuts = self.lend(py, numbers, Access::Read)?.into_iter();
        // SAFETY: the maker of the memory vouches for it while its owner lives, which the blocks
        // keep alive (PYTHON-Y3), and that nothing writes it meanwhile; a session gives blocks of a
        // GPU's memory to no other GPU, and orders their copies after the stream that may still
        // write them.
        Ok(in_turns(cuts.map(|cut| unsafe { cut.into_sources() })))
    }

    /// All cuts of the blocks of these numbers, to be fetched into, in the same order.
    pub(crate) fn write(&self, py: Python<'_>, numbers: &[u32]) -> PyResult<Vec<WriteBlock>> {
        // Blocks that share a row are lent together, so the loan does not tell.
        if let Some(number) = twice(numbers) {
            return Err(error(format!(
                "one fetch cannot write block {number} twice: name each block once"
            )));
        }
        let cuts = self.lend(py, numbers, Access::Write)?.into_iter();
        // SAFETY: as above, and nothing else reads or writes it: a block that is written is in no
        // other transfer (PYTHON-Y2), and its user reads a layer when it has arrived. No block is there
        // twice, and no two of the parts of all cuts overlap: the loan is refused then.
        Ok(in_turns(cuts.map(|cut| unsafe { cut.into_destinations() })))
    }

    /// Lends the blocks of these numbers to one transfer (PYTHON-Y2), all cuts under one loan.
    fn lend(
        &self,
        py: Python<'_>,
        numbers: &[u32],
        access: Access,
    ) -> PyResult<Vec<LentBlocks<Arc<Inner>>>> {
        let Inner { blocks, gpu, lending, .. } = &*self.inner;
        let count = blocks.blocks();
        if let Some(number) = numbers.iter().find(|number| **number >= count) {
            return Err(error(format!("there is no block {number}: the memory has {count}")));
        }
        // PYTHON-Y1: hundreds of thousands of parts of a long prompt.
        let loan = py.detach(|| lending.lend(blocks.spans(numbers), access));
        let loan = Arc::new(loan.map_err(|refused| self.refused(&refused, numbers))?);
        let of = if gpu.is_some() { MemoryOf::Gpu } else { MemoryOf::Process };
        let numbers: Arc<[u32]> = numbers.into();
        let cuts = (0..blocks.cuts()).filter_map(|cut| blocks.cut(cut, Arc::clone(&numbers)));
        let lent = |(parts, layers)| {
            let (loan, keeps) = (Arc::clone(&loan), Arc::clone(&self.inner));
            LentBlocks { parts, layers, of, loan, keeps }
        };
        Ok(cuts.map(lent).collect())
    }

    /// The exception for blocks of `numbers` that are not lent.
    fn refused(&self, refused: &LendError, numbers: &[u32]) -> PyErr {
        let block_at = |address| self.inner.blocks.block_at(address, numbers).unwrap_or_default();
        match refused {
            LendError::Overlap { second, .. } => error(format!(
                "the arrays of this memory overlap in block {}: pass arrays that do not",
                block_at(second.start)
            )),
            LendError::Taken { wanted, taken, .. } => error(format!(
                "block {} is in another transfer: wait for that transfer first",
                block_at(wanted.start.max(taken.start))
            )),
            LendError::Forked => Forked::new_err(
                "this process is a forked child of the process that made this memory: attach again \
                 in the child, and call block_memory() again",
            ),
        }
    }
}

/// A number that is there twice.
fn twice(numbers: &[u32]) -> Option<u32> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// The first of each list, then the second of each. They are equally long.
pub(crate) fn in_turns<T>(each: impl Iterator<Item = Vec<T>>) -> Vec<T> {
    let mut each: Vec<_> = each.map(Vec::into_iter).collect();
    let (count, lists) = (each.first().map_or(0, ExactSizeIterator::len), each.len());
    let mut all = Vec::with_capacity(count * lists);
    for _ in 0..count {
        all.extend(each.iter_mut().filter_map(Iterator::next));
    }
    all
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
