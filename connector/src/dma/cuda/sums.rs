//! Checksums that the GPU computes, of its own memory: of a source before it is copied, of a
//! destination after it was. So a byte that changes on the way is noticed (CUDA-V1, CUDA-V2).
//!
//! One launch sums many pieces (`kernel/crc32c.cu`). What they are lies in pinned memory, and so
//! do their CRCs, which the processor puts together: [`Shift`].
#![expect(unsafe_code, reason = "a kernel is launched, and works on addresses")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result, sys,
};

use super::bounce::pinned_memory;
use super::driver::reason;
use crate::dma::checksum::{RunningChecksum, Shift};
use crate::dma::lock;

/// The kernel, made of `kernel/crc32c.cu` by `kernel/compile`.
const PTX: &str = concat!(include_str!("kernel/crc32c.ptx"), "\0");
/// Of the kernel: tables, and entries of each.
const TABLES: u32 = 7;
const TABLE_ENTRIES: u32 = 1024;
/// Threads of a block: 16 warps, each of which sums one piece at a time.
const BLOCK_THREADS: u32 = 512;
/// Blocks of a launch, one on a multiprocessor each. At the speed of a link fewer are busy on average:
/// four sum as fast as a link of 64 GB/s copies (an H200 sums 15 GB/s on each). With eight, two
/// megabytes are summed in half of the time that it takes to copy them.
const BLOCKS: u32 = 8;
/// Pieces are as short as this where there is little to sum, so that all warps have some...
const PIECE_BYTES_MIN: u64 = 4 << 10;
/// ...and as long as this otherwise: each has some work at its end.
const PIECE_BYTES_MAX: u64 = 16 << 10;
/// A multiple of these is made of it.
const GRAIN_PIECES: usize = 1024;
/// What shifts are kept for: lengths of pieces are few.
const SHIFTS_MAX: usize = 256;

/// A piece, as the kernel reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Piece {
    address: u64,
    bytes: u64,
}

const PIECE: usize = size_of::<Piece>();
const SUM: usize = size_of::<u32>();

/// The kernel, in the context of one GPU.
#[derive(Debug)]
pub(super) struct Kernel {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    shifts: Mutex<BTreeMap<u64, Shift>>,
}

// SAFETY: handles of the driver, which any thread may use whose context is that of the GPU.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing but the shifts is changed, under their lock.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads it, and makes its tables. The context is the thread's current one.
    ///
    /// # Errors
    /// The driver's reason: one that is older than the kernel refuses it.
    pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, String> {
        // SAFETY: the text ends with a zero.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) };
        let module = module.map_err(reason)?;
        let function = |name: &str| {
            let name = CString::new(name).expect("names of functions have no zero");
            // SAFETY: the module was loaded.
            unsafe { result::module::get_function(module, name) }.map_err(reason)
        };
        let kernel = |function| Self {
            context: Arc::clone(context),
            module,
            function,
            shifts: Mutex::default(),
        };
        let made = function("rackline_crc32c").map(kernel)?;
        let tables = function("rackline_crc32c_tables")?;
        let stream = context.new_stream().map_err(reason)?;
        let (grid, block) = ((TABLES, 1, 1), (TABLE_ENTRIES, 1, 1));
        // SAFETY: it has no parameters, and a thread for each entry of each table.
        let launched =
            unsafe { result::launch_kernel(tables, grid, block, 0, stream.cu_stream(), &mut []) };
        launched.and_then(|()| super::turn::wait_for(&stream)).map_err(reason)?;
        // Of nothing, so that a kernel that does not run here is refused now, and its code is in the
        // GPU before the first block.
        let mut sums = SumStream::new(context).map_err(reason)?;
        let ran = sums.begin(&made, Pieces::of_about(0)).and_then(|summing| {
            // SAFETY: there are no pieces.
            unsafe { summing.launch_blocks(1, 0..0) }?;
            super::turn::wait_for(summing.stream())
        });
        ran.map_err(reason)?;
        Ok(made)
    }

    fn shift(&self, bytes: u64, crc: u32) -> u32 {
        let mut shifts = lock(&self.shifts);
        if shifts.len() > SHIFTS_MAX {
            shifts.clear();
        }
        shifts.entry(bytes).or_insert_with(|| Shift::over(bytes)).of(crc)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The context may be another thread's, or the driver may have ended with the process.
        let _current = self.context.bind_to_thread();
        // SAFETY: it was loaded, and nothing of it is under way: streams end before.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Pieces that are to be summed, in the order of the bytes of payloads.
#[derive(Debug)]
pub(super) struct Pieces {
    all: Vec<Piece>,
    piece_bytes: u64,
}

impl Pieces {
    /// None yet, of memory of about `total_bytes` bytes in all.
    pub(super) fn of_about(total_bytes: u64) -> Self {
        let warps = u64::from(BLOCKS * BLOCK_THREADS / 32);
        let piece_bytes = (total_bytes / warps).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        // So that there are few lengths.
        Self { all: Vec::new(), piece_bytes: piece_bytes.next_power_of_two() }
    }

    /// No pieces, behind those that there are.
    pub(super) fn none(&self) -> Range<usize> {
        self.all.len()..self.all.len()
    }

    /// Adds these parts (address and length). The answer is the numbers of their pieces.
    pub(super) fn add(&mut self, parts: impl Iterator<Item = (u64, usize)>) -> Range<usize> {
        let first = self.all.len();
        for (address, bytes) in parts {
            let (mut address, mut left) = (address, bytes as u64);
            while left > 0 {
                let bytes = left.min(self.piece_bytes);
                self.all.push(Piece { address, bytes });
                address += bytes;
                left -= bytes;
            }
        }
        first..self.all.len()
    }
}

/// A stream of low priority, and memory for what is summed on it: the engine's kernels go first.
#[derive(Debug)]
pub(super) struct SumStream {
    stream: Arc<CudaStream>,
    /// The pieces, and behind all of them the sums.
    memory: Option<PinnedHostSlice<u8>>,
    room_pieces: usize,
}

impl SumStream {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let (least, _greatest) = result::stream::get_priority_range()?;
        let stream = context.new_stream_with_priority(least)?;
        Ok(Self { stream, memory: None, room_pieces: 0 })
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Takes up `pieces`. Nothing of an earlier call is under way.
    ///
    /// # Errors
    /// The driver's, when it has no memory to pin.
    pub(super) fn begin<'s>(
        &'s mut self,
        kernel: &'s Kernel,
        pieces: Pieces,
    ) -> Result<Summing<'s>, DriverError> {
        let count = pieces.all.len();
        if self.room_pieces < count || self.memory.is_none() {
            self.memory = None;
            self.room_pieces = count.max(1).next_multiple_of(GRAIN_PIECES);
            let bytes = self.room_pieces * (PIECE + SUM);
            self.memory = Some(pinned_memory(&kernel.context, bytes)?);
        }
        let memory = self.memory.as_mut().expect("it was just made");
        let bytes = memory.as_mut_slice()?;
        bytes[..count * PIECE].copy_from_slice(bytemuck::cast_slice(&pieces.all));
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let sums_at = self.room_pieces * PIECE;
        Ok(Summing { kernel, stream: &self.stream, memory, address, sums_at, pieces: pieces.all })
    }
}

/// Pieces that are being summed.
#[derive(Debug)]
pub(super) struct Summing<'s> {
    kernel: &'s Kernel,
    stream: &'s Arc<CudaStream>,
    memory: &'s mut PinnedHostSlice<u8>,
    address: u64,
    sums_at: usize,
    pieces: Vec<Piece>,
}

impl Summing<'_> {
    pub(super) fn stream(&self) -> &CudaStream {
        self.stream
    }

    /// Has the GPU sum those pieces, after what its stream was told to wait for. The event is
    /// recorded behind it.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Until the stream has come to this point, the pieces are memory of the GPU that nobody
    /// writes, and this is not dropped.
    pub(super) unsafe fn launch(&self, pieces: Range<usize>) -> Result<(), DriverError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let count = u32::try_from(pieces.len()).expect("pieces lie in memory of one GPU");
        let blocks = count.div_ceil(BLOCK_THREADS / 32).min(BLOCKS);
        // SAFETY: the caller's.
        unsafe { self.launch_blocks(blocks, pieces) }
    }

    /// The same, with so many blocks of threads.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn launch_blocks(&self, blocks: u32, pieces: Range<usize>) -> Result<(), DriverError> {
        let mut of_pieces = self.address + (pieces.start * PIECE) as u64;
        let mut count = u32::try_from(pieces.len()).expect("pieces lie in memory of one GPU");
        let mut sums = self.address + (self.sums_at + pieces.start * SUM) as u64;
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut of_pieces).cast(), (&raw mut count).cast(), (&raw mut sums).cast()];
        let (grid, block) = ((blocks, 1, 1), (BLOCK_THREADS, 1, 1));
        // SAFETY: three parameters as the kernel has them. It reads the pieces and writes the sums
        // in this memory, which the GPU reaches at the same addresses; the rest is the caller's.
        unsafe {
            result::launch_kernel(
                self.kernel.function,
                grid,
                block,
                0,
                self.stream.cu_stream(),
                &mut parameters,
            )
        }
    }

    /// An event behind all that was launched so far.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn launched(&self) -> Result<CudaEvent, DriverError> {
        self.stream.record_event(Some(super::turn::SLEEPING))
    }

    /// Adds the bytes of these pieces, whose sums are there, to `checksum`.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn add_to(
        &mut self,
        checksum: &mut RunningChecksum,
        pieces: Range<usize>,
    ) -> Result<(), DriverError> {
        let bytes = self.memory.as_slice()?;
        for number in pieces {
            let at = self.sums_at + number * SUM;
            let sum = bytemuck::pod_read_unaligned::<u32>(&bytes[at..at + SUM]);
            let bytes = self.pieces[number].bytes;
            checksum.add_by(|crc| self.kernel.shift(bytes, crc) ^ sum);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_bytes_of_their_parts_in_order() {
        for (total, piece) in [(0, 4 << 10), (1 << 20, 8 << 10), (1 << 30, 16 << 10)] {
            assert_eq!(Pieces::of_about(total).piece_bytes, piece, "{total}");
        }
        let mut pieces = Pieces::of_about(0);
        let first = pieces.add([(1 << 20, 10_000), (5, 0), (7, 1)].into_iter());
        let second = pieces.add([(64, 4096)].into_iter());
        assert_eq!((first, second), (0..4, 4..5));
        let found: Vec<_> = pieces.all.iter().map(|piece| (piece.address, piece.bytes)).collect();
        let at = 1 << 20;
        let expected = [(at, 4096), (at + 4096, 4096), (at + 8192, 1808), (7, 1), (64, 4096)];
        assert_eq!(found, expected);
    }
}
