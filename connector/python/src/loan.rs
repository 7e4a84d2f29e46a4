//! Blocks of an engine's memory that are lent to transfers (PYTHON-Y2).
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use rackline::memory::{
    Access, LendError, Lending, LentBlocks, LentDestination, LentSource, MemoryOf, StridedBlocks,
};
use rackline::{Layers, ProcessMark};

use crate::error::{Forked, error};

/// The memory of a `BlockMemory`.
pub(crate) struct Memory {
    pub(crate) blocks: StridedBlocks,
    /// The GPU whose memory it is; none for memory that the processor reads and writes.
    pub(crate) gpu: Option<usize>,
    /// Which memory of this process is in transfers, by its addresses.
    pub(crate) lending: Arc<Lending>,
    /// PYTHON-Y3.
    pub(crate) _owner: Py<PyAny>,
}

/// Blocks that are lent until this and all transfers of them are gone: one loan for all cuts, which
/// have other bytes of the same blocks.
pub(crate) struct Lent {
    loan: Arc<rackline::memory::Loan>,
    access: Access,
    numbers: Arc<[u32]>,
    /// For each cut, whether a transfer writes it.
    written: Vec<AtomicBool>,
    memory: Arc<Memory>,
}

/// What the blocks of a transfer keep.
pub(crate) struct Kept {
    lent: Arc<Lent>,
    /// The cut that the transfer writes.
    writes: Option<usize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(cut) = self.writes {
            self.lent.written[cut].store(false, Ordering::Release);
        }
    }
}

/// A block that a transfer reads. It keeps the memory.
pub(crate) type ReadBlock = LentSource<Kept>;

/// A block that a transfer writes. It keeps the memory.
pub(crate) type WriteBlock = LentDestination<Kept>;

impl Memory {
    /// Lends the blocks of these numbers: hundreds of thousands of parts of a long prompt. Waits for
    /// no lock of Python (PYTHON-Y1).
    pub(crate) fn lend(
        self: &Arc<Self>,
        py: Python<'_>,
        numbers: &[u32],
        access: Access,
    ) -> PyResult<Lent> {
        let blocks = self.blocks.blocks();
        if let Some(number) = numbers.iter().find(|number| **number >= blocks) {
            return Err(error(format!("there is no block {number}: the memory has {blocks}")));
        }
        // Blocks of one row are lent together, so the loan does not tell.
        if access == Access::Write
            && let Some(number) = twice(numbers)
        {
            return Err(error(format!(
                "one fetch cannot write block {number} twice: name each block once"
            )));
        }
        let loan = py.detach(|| self.lending.lend(self.blocks.spans(numbers), access));
        let loan = Arc::new(loan.map_err(|refused| self.refused(&refused, numbers))?);
        let written = (0..self.blocks.cuts()).map(|_| AtomicBool::new(false)).collect();
        let memory = Arc::clone(self);
        Ok(Lent { loan, access, numbers: numbers.into(), written, memory })
    }

    /// The exception for blocks of `numbers` that are not lent.
    fn refused(&self, refused: &LendError, numbers: &[u32]) -> PyErr {
        let block_at = |address| self.blocks.block_at(address, numbers).unwrap_or_default();
        match refused {
            LendError::Overlap { second, .. } => error(format!(
                "the arrays of this memory overlap in block {}: pass arrays that do not",
                block_at(second.start)
            )),
            LendError::Taken { wanted, taken, .. } => error(format!(
                "block {} is in another transfer: wait for that transfer first",
                block_at(wanted.start.max(taken.start))
            )),
            LendError::Forked => forked(),
        }
    }
}

impl Lent {
    /// How many blocks there are.
    pub(crate) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Length of a cut of a block in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.memory.blocks.block_bytes()
    }

    /// The GPU whose memory it is.
    pub(crate) fn of_gpu(&self) -> Option<usize> {
        self.memory.gpu
    }

    /// How a cut of a block is divided into layers.
    pub(crate) fn layers(&self) -> Layers {
        Layers::new(self.memory.blocks.layer_bytes().iter().copied())
    }

    /// A cut of the blocks, to be published.
    pub(crate) fn sources(self: &Arc<Self>, cut: usize) -> PyResult<Vec<ReadBlock>> {
        if self.access != Access::Read {
            return Err(error("the blocks are lent to be written: lend them with write=False"));
        }
        let blocks = self.blocks(cut, None)?;
        // SAFETY: the maker of the memory vouches for it while its owner lives, which the blocks
        // keep alive (PYTHON-Y3), and that nothing writes it meanwhile; a session gives blocks of a
        // GPU's memory to no other GPU, and orders their copies after the stream that may still
        // write them.
        Ok(unsafe { blocks.into_sources() })
    }

    /// A cut of the blocks, to be fetched into. It is in one transfer at a time (PYTHON-Y2).
    pub(crate) fn destinations(self: &Arc<Self>, cut: usize) -> PyResult<Vec<WriteBlock>> {
        if self.access != Access::Write {
            return Err(error("the blocks are lent to be read: lend them with write=True"));
        }
        if self.written.get(cut).is_some_and(|written| written.swap(true, Ordering::Acquire)) {
            return Err(error(format!(
                "cut {cut} of this loan is in another transfer: wait for that transfer first"
            )));
        }
        let blocks = self.blocks(cut, Some(cut))?;
        // SAFETY: as above, and nothing else reads or writes it: what a loan for writing covers is in
        // no other loan, and the cut in no other transfer of this loan (PYTHON-Y2). Its user reads a
        // layer when it has arrived. No two of the parts of all cuts overlap: the loan is refused then.
        Ok(unsafe { blocks.into_destinations() })
    }

    fn blocks(self: &Arc<Self>, cut: usize, writes: Option<usize>) -> PyResult<LentBlocks<Kept>> {
        let blocks = &self.memory.blocks;
        let Some((parts, layers)) = blocks.cut(cut, Arc::clone(&self.numbers)) else {
            return Err(error(format!("there is no cut {cut}: the memory has {}", blocks.cuts())));
        };
        let of = if self.of_gpu().is_some() { MemoryOf::Gpu } else { MemoryOf::Process };
        let (loan, lent) = (Arc::clone(&self.loan), Arc::clone(self));
        Ok(LentBlocks { parts, layers, of, loan, keeps: Kept { lent, writes } })
    }
}

/// Blocks that the caller has lent to transfers of several cuts.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Loan {
    /// None when the caller has given its share back.
    lent: Mutex<Option<Arc<Lent>>>,
    process: ProcessMark,
}

impl Loan {
    pub(crate) fn new(lent: Lent) -> Self {
        Self { lent: Mutex::new(Some(Arc::new(lent))), process: ProcessMark::of_this() }
    }

    /// The blocks: held for a moment only.
    fn blocks(&self) -> PyResult<MutexGuard<'_, Option<Arc<Lent>>>> {
        if !self.process.is_of_this() {
            return Err(forked());
        }
        Ok(self.lent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn lent(&self) -> PyResult<Arc<Lent>> {
        let lent = self.blocks()?.clone();
        lent.ok_or_else(|| error("the loan was released: lend the blocks again"))
    }
}

#[pymethods]
impl Loan {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lent()?.count())
    }

    /// Gives the caller's share back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let lent = self.blocks()?.take();
        py.detach(|| drop(lent));
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.release(py)
    }
}

/// A number that is there twice.
fn twice(numbers: &[u32]) -> Option<u32> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn forked() -> PyErr {
    Forked::new_err(
        "this process is a forked child of the process that made this memory: attach again in the \
         child, and call block_memory() again",
    )
}
