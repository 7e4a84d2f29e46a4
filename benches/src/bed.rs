//! The memory that is copied between.

use std::error::Error;

use cxl_shm::fabric::{MappedFabric, Mapping};
use cxl_shm::units::Extent;

/// Size of the pool and of the private memory, in bytes each: together more than the last-level
/// cache of any machine this runs on, so that what is copied next has long been evicted.
const WORKING_SET: usize = 512 * MIB;
/// Bytes that one batch copies, whatever the size of its payloads.
const BATCH: usize = 32 * MIB;
const MIB: usize = 1024 * 1024;
const PAGE: usize = 4096;
const _: () = assert!(WORKING_SET.is_multiple_of(BATCH));

/// A pool in `/dev/shm` and private memory of the same size, both touched before.
#[derive(Debug)]
pub struct Bed {
    fabric: MappedFabric,
    private: Vec<u8>,
    /// Where the private memory that is used starts: on a page, as payloads do.
    private_start: usize,
    /// Where the next batch starts, in both.
    next: usize,
}

/// Payloads and as many private bytes, neither in any cache.
#[derive(Debug)]
pub struct Batch<'b> {
    /// The pool.
    pub mapping: &'b Mapping,
    /// Where the payloads are.
    pub payloads: Vec<Extent>,
    /// One private buffer a payload.
    pub buffers: Vec<&'b mut [u8]>,
}

impl Bed {
    /// Bytes copied by a batch.
    pub const BATCH_BYTES: u64 = BATCH as u64;

    /// Allocates and touches all memory.
    ///
    /// # Errors
    /// When there is less than 512 MiB left in `/dev/shm`.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let bytes = WORKING_SET as u64;
        let file = tempfile::tempfile_in("/dev/shm")?;
        file.set_len(bytes)?;
        let mapping = Mapping::shared(&file, bytes)?;
        mapping.prefault(Extent::new(0, bytes).ok_or("the pool is too long")?)?;
        let private = vec![0x5a; WORKING_SET + PAGE];
        let private_start = private.as_ptr().align_offset(PAGE);
        Ok(Self { fabric: MappedFabric::new(mapping)?, private, private_start, next: 0 })
    }

    /// The pool, as an engine takes it.
    #[must_use]
    pub fn fabric(&self) -> &MappedFabric {
        &self.fabric
    }

    /// The next batch of payloads of `payload_bytes` bytes, a power of two from 4 KiB to 32 MiB.
    pub fn batch(&mut self, payload_bytes: usize) -> Batch<'_> {
        let start = self.next;
        self.next = (start + BATCH) % WORKING_SET;
        let payloads = (start..start + BATCH)
            .step_by(payload_bytes)
            .filter_map(|at| Extent::new(at as u64, payload_bytes as u64))
            .collect();
        let private = &mut self.private[self.private_start + start..][..BATCH];
        let buffers = private.chunks_mut(payload_bytes).collect();
        Batch { mapping: self.fabric.mapping(), payloads, buffers }
    }
}
