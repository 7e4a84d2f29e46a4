//! The mapping of the pool, made known to the driver.
#![expect(unsafe_code, reason = "the driver pins memory of this process")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};
use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use super::driver::reason;
use super::turn::Turn;

/// Bytes registered at a time: one registration of 512 GiB fails on recent drivers.
const PIECE_BYTES: u64 = 32 << 30;

/// How a GPU reaches the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PoolReach {
    /// Straight: the mapping is registered as memory.
    Registered,
    /// Straight: the mapping is registered as memory of a device, which some drivers may want for
    /// device DAX. The GPU does not look into the caches of processors then, which changes nothing:
    /// lines are refreshed before a load, and flushed after a store.
    RegisteredAsDevice,
    /// Through a pinned buffer, with a copy more by the processor.
    Bounced {
        /// Why the mapping could not be registered.
        reason: String,
    },
}

impl PoolReach {
    /// A short name, for people and for other languages.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::RegisteredAsDevice => "registered as memory of a device",
            Self::Bounced { .. } => "bounced",
        }
    }

    /// Why the GPU reaches the pool only through a buffer; `None` where it needs none.
    #[must_use]
    pub fn bounced_because(&self) -> Option<&str> {
        match self {
            Self::Bounced { reason } => Some(reason),
            Self::Registered | Self::RegisteredAsDevice => None,
        }
    }
}

/// A mapping that the driver has pinned, in pieces. Unpinned when dropped; copies are over by then.
#[derive(Debug)]
pub(super) struct Registration {
    context: Arc<CudaContext>,
    mapping: Arc<Mapping>,
    pieces: Vec<Extent>,
    piece_bytes: u64,
}

impl Registration {
    /// Registers all of `mapping`, as memory or else as memory of a device.
    ///
    /// # Errors
    /// The driver's reasons; nothing is registered then.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        mapping: &Arc<Mapping>,
    ) -> Result<(Self, PoolReach), String> {
        Self::in_pieces(context, mapping, PIECE_BYTES)
    }

    fn in_pieces(
        context: &Arc<CudaContext>,
        mapping: &Arc<Mapping>,
        piece_bytes: u64,
    ) -> Result<(Self, PoolReach), String> {
        let memory = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let device = memory | sys::CU_MEMHOSTREGISTER_IOMEMORY;
        let mut refused = Vec::new();
        for (flags, reach) in
            [(memory, PoolReach::Registered), (device, PoolReach::RegisteredAsDevice)]
        {
            // What was registered before a piece was refused is given back when this is dropped.
            let mut registration = Self {
                context: Arc::clone(context),
                mapping: Arc::clone(mapping),
                pieces: Vec::new(),
                piece_bytes,
            };
            match registration.register(flags) {
                Ok(()) => return Ok((registration, reach)),
                Err(error) => refused.push(reason(error)),
            }
        }
        let [memory, device] = &refused[..] else { unreachable!("one reason for each try") };
        Err(format!("as memory: {memory}; as memory of a device: {device}"))
    }

    fn register(&mut self, flags: u32) -> Result<(), DriverError> {
        let _turn = Turn::begin(&self.context)?;
        for piece in pieces(self.mapping.bytes(), self.piece_bytes) {
            let address = self.mapping.address(piece).expect("a piece lies in the mapping");
            let bytes = length(piece);
            // SAFETY: the piece is mapped while `self.mapping` lives, which goes after this (see
            // `drop`).
            unsafe { sys::cuMemHostRegister_v2(address.cast(), bytes, flags) }.result()?;
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// The runs of `bytes` bytes from `offset` on that lie in one piece each: offset and length.
    /// The driver refuses a copy that crosses from one into the next.
    pub(super) fn runs(&self, offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize)> {
        runs(offset, bytes, self.piece_bytes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Without it every one of these fails, and the mapping stays.
        let _turn = Turn::begin(&self.context);
        for piece in std::mem::take(&mut self.pieces) {
            let address = self.mapping.address(piece).expect("a piece lies in the mapping");
            // SAFETY: it was registered at this address, and no copy is under way.
            let outcome = unsafe { sys::cuMemHostUnregister(address.cast()) };
            if outcome.result().is_err() {
                // Pages that the driver may still have pinned stay mapped rather than be given to
                // somebody else.
                std::mem::forget(Arc::clone(&self.mapping));
            }
        }
    }
}

fn pieces(bytes: u64, piece_bytes: u64) -> impl Iterator<Item = Extent> {
    (0..bytes.div_ceil(piece_bytes)).filter_map(move |index| {
        let offset = index * piece_bytes;
        Extent::new(offset, piece_bytes.min(bytes - offset))
    })
}

fn runs(offset: u64, bytes: usize, piece_bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let (mut offset, mut left) = (offset, bytes);
    std::iter::from_fn(move || {
        let in_piece = usize::try_from(piece_bytes - offset % piece_bytes).unwrap_or(usize::MAX);
        let run = (offset, in_piece.min(left));
        offset += run.1 as u64;
        left -= run.1;
        (run.1 > 0).then_some(run)
    })
}

fn length(piece: Extent) -> usize {
    usize::try_from(piece.bytes()).expect("it is mapped, so its length is one of this machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_mapping_once() {
        for (bytes, expected) in [(1, 1), (4096, 1), (4097, 2), (3 * 4096, 3)] {
            let pieces: Vec<_> = pieces(bytes, 4096).collect();
            assert_eq!(pieces.len(), expected);
            let mut end = 0;
            for piece in pieces {
                assert_eq!(piece.offset(), end);
                end = piece.end();
            }
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn a_copy_is_split_where_a_piece_ends() {
        let split = |offset, bytes| runs(offset, bytes, 4096).collect::<Vec<_>>();
        assert_eq!(split(0, 4096), [(0, 4096)]);
        assert_eq!(split(4000, 96), [(4000, 96)]);
        assert_eq!(split(4000, 97), [(4000, 96), (4096, 1)]);
        assert_eq!(split(4000, 9000), [(4000, 96), (4096, 4096), (8192, 4096), (12288, 712)]);
        assert_eq!(split(4096, 0), []);
    }
}
