//! Fetch by a program that is no member: small blocks, copied by the CPU, with the same two looks
//! (READ-F1, READ-F2) and the checksum (READ-F3).

use crc_fast::CrcAlgorithm;
use cxl_shm::fabric::{Fabric, refresh_all};
use cxl_shm::units::{LineRange, WORD_BYTES, WordOffset};

use crate::format::{Descriptor, Handle, SlotContent};
use crate::identity::{BlockKey, KeySpace};
use crate::replica::PoolReader;

impl PoolReader {
    /// Those among `handles` that are blocks of `space` of at most `bytes_max` bytes, whose block hashes
    /// begin with four zeros ([`KeySpace::may_begin_with`]): key and bytes. A block that is gone or damaged
    /// is left out.
    pub fn read_marked<F: Fabric>(
        &self,
        fabric: &F,
        handles: &[Handle],
        space: &KeySpace,
        bytes_max: u64,
    ) -> Vec<(BlockKey, Vec<u8>)> {
        let wanted = |block: &Descriptor| {
            space.may_begin_with(block.key, [0; 4]) && block.payload.bytes() <= bytes_max
        };
        let first: Vec<_> =
            self.look(fabric, handles).into_iter().flatten().filter(wanted).collect();
        refresh_all(fabric, first.iter().map(|block| LineRange::covering(block.payload)));
        let copies: Vec<_> = first.iter().map(|block| copy(fabric, block)).collect();
        let found: Vec<_> = first.iter().map(|block| block.handle).collect();
        let second = self.look(fabric, &found);
        let is_good = |block: &Descriptor, now: Option<Descriptor>, bytes: &[u8]| {
            // Everything but the state, as in `Cache::close`.
            now.is_some_and(|now| Descriptor { state: block.state, ..now } == *block)
                && checksum(bytes) == u64::from(block.checksum)
        };
        let blocks = first.iter().zip(second).zip(copies);
        blocks
            .filter_map(|((block, now), bytes)| {
                is_good(block, now, &bytes).then_some((block.key, bytes))
            })
            .collect()
    }

    /// The block of each handle, freshly looked at; `None` for one that is not readable.
    fn look<F: Fabric>(&self, fabric: &F, handles: &[Handle]) -> Vec<Option<Descriptor>> {
        let line = |handle: &Handle| {
            self.areas().segment_of(*handle).map(|segment| segment.range(handle.slot()))
        };
        refresh_all(fabric, handles.iter().filter_map(line));
        let block = |handle: &Handle| {
            let segment = self.areas().segment_of(*handle)?;
            match segment.cached(fabric, handle.slot()) {
                Ok(SlotContent::Block(block)) if block.handle == *handle && block.is_readable() => {
                    Some(block)
                }
                Ok(_) | Err(_) => None,
            }
        };
        handles.iter().map(block).collect()
    }
}

/// The payload as this host's caches hold it.
fn copy<F: Fabric>(fabric: &F, block: &Descriptor) -> Vec<u8> {
    let (start, bytes) = (block.payload.offset(), block.payload.bytes());
    let words = (0..bytes.div_ceil(WORD_BYTES)).filter_map(|word| {
        WordOffset::new(start + word * WORD_BYTES).map(|at| fabric.load(at).to_le_bytes())
    });
    let mut copied: Vec<u8> = words.flatten().collect();
    copied.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    copied
}

fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes)
}
