//! Memory of an engine: blocks at addresses, of this process or of a GPU.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rackline::ProcessMark;
use rackline::memory::{Access, Lending, Shape, StridedBlocks, StridedPart};

use crate::error::error;
use crate::loan::{Lent, Loan, Memory};

/// Blocks in the memory of this process, or of GPU number `gpu`, in rows of `steps` blocks. Block `b`
/// is, for each part in order, the `bytes` bytes at
/// `address + (b / steps) * stride + (b % steps) * step`.
///
/// The caller that makes one guarantees that this memory exists for as long as `owner` does, and
/// that nothing else writes a block while a transfer of it is under way, nor reads it while it is
/// fetched; of a transfer by layers, a layer that is ready, or that has not arrived.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct BlockMemory {
    memory: Arc<Memory>,
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
        parts: Vec<Part>,
        blocks: u32,
        owner: Py<PyAny>,
        gpu: Option<usize>,
        layers: Option<Vec<usize>>,
        cuts: usize,
        steps: u32,
        within: Option<Vec<(usize, usize)>>,
    ) -> PyResult<Self> {
        let span = |(address, bytes): (usize, usize)| address..address.saturating_add(bytes);
        let within = within.map(|within| within.into_iter().map(span).collect());
        let parts: Vec<StridedPart> = parts.into_iter().map(Into::into).collect();
        let shape = Shape { blocks, steps, cuts, layers, within };
        let blocks = StridedBlocks::new(&parts, &shape).map_err(error)?;
        let lending = lending_of_this_process();
        Ok(Self { memory: Arc::new(Memory { blocks, gpu, lending, _owner: owner }) })
    }

    /// Length of a cut of a block in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.memory.blocks.block_bytes()
    }

    /// How many layers a block has.
    #[getter]
    fn layers(&self) -> usize {
        self.memory.blocks.layer_bytes().len()
    }

    /// How many blocks there are.
    #[getter]
    fn blocks(&self) -> u32 {
        self.memory.blocks.blocks()
    }

    /// How many cuts a block has.
    #[getter]
    #[pyo3(name = "cuts")]
    pub(crate) fn cut_count(&self) -> usize {
        self.memory.blocks.cuts()
    }

    /// How many blocks a row has.
    #[getter]
    fn steps(&self) -> u32 {
        self.memory.blocks.steps()
    }

    /// The number of the GPU whose memory it is.
    #[getter]
    pub(crate) fn gpu(&self) -> Option<usize> {
        self.memory.gpu
    }

    #[pyo3(signature = (numbers, *, write = false))]
    fn lend(&self, py: Python<'_>, numbers: Vec<u32>, write: bool) -> PyResult<Loan> {
        let access = if write { Access::Write } else { Access::Read };
        Ok(Loan::new(self.lend_to(py, &numbers, access)?))
    }
}

impl BlockMemory {
    /// Lends the blocks of these numbers to transfers.
    pub(crate) fn lend_to(
        &self,
        py: Python<'_>,
        numbers: &[u32],
        access: Access,
    ) -> PyResult<Lent> {
        self.memory.lend(py, numbers, access)
    }
}

/// What a transfer takes: memory with the numbers of its blocks, or a loan with the number of a cut.
#[derive(FromPyObject)]
pub(crate) enum Blocks<'py> {
    Memory(PyRef<'py, BlockMemory>),
    Loan(PyRef<'py, Loan>),
}

impl Blocks<'_> {
    /// Blocks that are lent, and which cut of them. `which` has the numbers of the blocks, or is that
    /// of the cut.
    pub(crate) fn lent(
        &self,
        py: Python<'_>,
        which: &Bound<'_, PyAny>,
        access: Access,
    ) -> PyResult<(Arc<Lent>, usize)> {
        let memory = match self {
            Self::Memory(memory) => &memory.memory,
            Self::Loan(loan) => return Ok((loan.lent()?, which.extract()?)),
        };
        let cuts = memory.blocks.cuts();
        if cuts > 1 {
            return Err(error(format!(
                "the memory has {cuts} cuts: lend its blocks, and name the cut of a transfer"
            )));
        }
        Ok((Arc::new(memory.lend(py, &which.extract::<Vec<u32>>()?, access)?), 0))
    }
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
