//! Memory that C lends to a transfer (CAPI-I7).
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::ffi::c_void;
use std::sync::Arc;

use rackline::memory::{
    self, Access, LendError, Lending, LentBlocks, LentPart, LentParts, LentSession, MemoryOf,
};
use rackline::{AsyncSession, Layers};

use super::arguments::values;
use super::error::{Failure, RacklineError};
use super::gpu::At;
use super::handles;
use super::layers::{Division, RacklineLayers};
use super::opening::RacklineSession;

/// A part of a block that is published. It must not change until the publish is over; of a publish
/// by layers, from when its layer is ready.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineSource {
    /// Where it starts: in memory of this process, or of the GPU that it is published from.
    pub address: *const c_void,
    /// Its length in bytes, at least 1.
    pub bytes: usize,
}

/// A part of a block that is fetched. The program neither reads nor writes it until the fetch is
/// over; of a fetch by layers, until its layer has arrived.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineDestination {
    /// Where it starts: in memory of this process, or of the GPU that it is fetched into.
    pub address: *mut c_void,
    /// Its length in bytes, at least 1.
    pub bytes: usize,
}

/// A block that is published.
pub(super) type LentSource = memory::LentSource<()>;

/// A block that is fetched into.
pub(super) type LentDestination = memory::LentDestination<()>;

/// A transfer, as C asks for it. `P` is [`RacklineSource`] or [`RacklineDestination`].
pub(super) struct Asked<P> {
    pub(super) session: RacklineSession,
    pub(super) at: At,
    /// Of the blocks in order.
    pub(super) parts: *const P,
    pub(super) parts_a_block: usize,
    /// None of whole blocks.
    pub(super) layers: Option<*const RacklineLayers>,
}

/// The same with its memory: `N` names a block in the pool.
pub(super) struct Transfer<N> {
    pub(super) session: LentSession,
    pub(super) named: Vec<N>,
    pub(super) memory: LentBlocks<()>,
    /// How the bytes of a block are divided.
    pub(super) layers: Layers,
}

impl<P> Asked<P> {
    /// The transfer of the blocks that `named` names.
    ///
    /// # Safety
    /// `parts` is null or points to the parts of as many blocks. The layers are null, or as
    /// [`Division::of`] wants them. The stream is as [`At::place`] wants it.
    pub(super) unsafe fn transfer<N>(
        self,
        access: Access,
        named: impl FnOnce() -> Result<Vec<N>, Failure>,
    ) -> Result<Transfer<N>, Failure> {
        let Self { session, at, parts, parts_a_block, layers } = self;
        let session = handles::get::<AsyncSession>(session.handle)?;
        // SAFETY: by the caller's promise.
        let place = unsafe { at.place() }?;
        let named = named()?;
        // SAFETY: by the caller's promise.
        let division = unsafe { Division::of(parts_a_block, layers) }?;
        let count = part_count(named.len(), division.parts_a_block())?;
        // SAFETY: by the caller's promise. Sources and destinations are alike in memory.
        let parts =
            unsafe { values(parts.cast::<RacklineSource>(), count, "the parts of the blocks") }?;
        let parts = parts.iter().map(|part| (part.address.expose_provenance(), part.bytes));
        let (parts, layers) = checked(parts, &division, session.options().block_bytes())?;
        let memory = lend(parts, &division, place.memory(), handles::lending()?, access)?;
        Ok(Transfer { session: LentSession::new(&session, place)?, named, memory, layers })
    }
}

fn part_count(blocks: usize, parts_a_block: usize) -> Result<usize, Failure> {
    if blocks > 0 && parts_a_block == 0 {
        return Err(Failure::bad_argument("blocks of 0 parts"));
    }
    blocks.checked_mul(parts_a_block).ok_or_else(|| {
        let message = format!("{blocks} blocks of {parts_a_block} parts reach beyond all memory");
        Failure::bad_argument(message)
    })
}

/// The parts, if they can be, those of each block are as long as a block, and each layer is equally
/// long in all blocks; and how long that is.
fn checked(
    parts: impl Iterator<Item = (usize, usize)>,
    division: &Division,
    block_bytes: u64,
) -> Result<(Vec<LentPart>, Layers), Failure> {
    let parts_a_block = division.parts_a_block();
    let mut checked = Vec::with_capacity(parts.size_hint().0);
    for (index, (address, bytes)) in parts.enumerate() {
        if address == 0 || bytes == 0 {
            let (block, part) = (index / parts_a_block, index % parts_a_block);
            let message = format!("part {part} of block {block} has no address or no bytes");
            return Err(Failure::bad_argument(message));
        }
        let end = address.checked_add(bytes);
        if end.is_none_or(|end| end > isize::MAX.unsigned_abs()) {
            let message = format!("{bytes} bytes at {address:#x} reach beyond all memory");
            return Err(Failure::bad_argument(message));
        }
        checked.push(LentPart { address, bytes });
    }
    // Those of block 0. Without blocks any layers that make up a block do.
    let mut layer_bytes = vec![0; division.layers().len()];
    layer_bytes[0] = block_bytes;
    for (block, parts) in checked.chunks(parts_a_block.max(1)).enumerate() {
        // None is longer than all memory, and there are fewer than 2^63 of them.
        let bytes: u128 = parts.iter().map(|part| part.bytes as u128).sum();
        if bytes != u128::from(block_bytes) {
            let message = format!(
                "the parts of block {block} have {bytes} bytes, a block of the session {block_bytes}"
            );
            return Err(Failure::bad_argument(message));
        }
        for (layer, range) in division.layers().iter().enumerate() {
            // Not longer than the block.
            let bytes: u64 = parts[range.clone()].iter().map(|part| part.bytes as u64).sum();
            let of_first = &mut layer_bytes[layer];
            if block == 0 {
                *of_first = bytes;
            } else if *of_first != bytes {
                return Err(Failure::bad_argument(format!(
                    "layer {layer} has {bytes} bytes in block {block}, and {of_first} in block 0"
                )));
            }
        }
    }
    Ok((checked, Layers::new(layer_bytes)))
}

/// Lends the parts to one transfer.
fn lend(
    parts: Vec<LentPart>,
    division: &Division,
    of: MemoryOf,
    lending: &Arc<Lending>,
    access: Access,
) -> Result<LentBlocks<()>, Failure> {
    let span = |part: &LentPart| part.address..part.address + part.bytes;
    let loan = lending.lend(parts.iter().map(span), access)?;
    let parts = LentParts::Listed { parts, a_block: division.parts_a_block() };
    let layers = Arc::clone(division.layers());
    Ok(LentBlocks { parts, layers, of, loan: Arc::new(loan), keeps: () })
}

impl From<LendError> for Failure {
    fn from(refused: LendError) -> Self {
        match refused {
            LendError::Overlap { first, second } => Self::bad_argument(format!(
                "two destinations overlap: {} bytes at {:#x} and {} at {:#x}",
                first.len(),
                first.start,
                second.len(),
                second.start
            )),
            LendError::Taken { taken, access, .. } => {
                let does = match access {
                    Access::Read => "read",
                    Access::Write => "written",
                };
                let message = format!(
                    "{} bytes at {:#x} are {does} by another transfer: wait for that transfer first, \
                     or free it",
                    taken.len(),
                    taken.start
                );
                Self::new(RacklineError::Lent, message)
            }
            LendError::Forked => Self::new(RacklineError::Forked, refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(outcome: Result<T, Failure>) -> String {
        let failure = outcome.err().expect("it is refused");
        failure.message.into_owned().into_string().unwrap()
    }

    #[test]
    fn what_is_lent_says_where_and_how() {
        let lending = Arc::<Lending>::default();
        let lent = |spans: &[(usize, usize)], access| {
            let part =
                |(address, bytes): &(usize, usize)| LentPart { address: *address, bytes: *bytes };
            let parts = spans.iter().map(part).collect();
            lend(parts, &Division::whole(1), MemoryOf::Process, &lending, access)
        };
        let reads = lent(&[(0x100, 64), (0x140, 16)], Access::Read).unwrap();
        let refused = lent(&[(0x130, 64)], Access::Write).err().unwrap();
        assert_eq!(refused.code, RacklineError::Lent);
        assert!(message::<()>(Err(refused)).contains("80 bytes at 0x100 are read by another"));
        drop(reads);
        let _writes = lent(&[(0x100, 64)], Access::Write).unwrap();
        assert!(message(lent(&[(0x13f, 1)], Access::Read)).contains("written by another transfer"));
        let refused = lent(&[(0x220, 1), (0x200, 64)], Access::Write).err().unwrap();
        assert_eq!(refused.code, RacklineError::BadArgument);
        assert!(message::<()>(Err(refused)).contains("64 bytes at 0x200 and 1 at 0x220"));
    }

    #[test]
    fn parts_that_cannot_be_or_do_not_fit_are_refused() {
        let whole = Division::whole(2);
        let refused =
            |parts: &[(usize, usize)]| message(checked(parts.iter().copied(), &whole, 64));
        let two = [(8, 60), (100, 4), (200, 1), (300, 63)].into_iter();
        let (parts, layers) = checked(two, &whole, 64).unwrap();
        assert_eq!((parts.len(), layers), (4, Layers::new([64])));
        assert!(refused(&[(8, 60), (0, 4)]).contains("part 1 of block 0 has no address"));
        assert!(refused(&[(8, 60), (8, 4), (8, 0), (8, 64)]).contains("part 0 of block 1"));
        assert!(refused(&[(usize::MAX, 60), (8, 4)]).contains("beyond"));
        assert!(refused(&[(8, 60), (8, 5)]).contains("block 0 have 65 bytes"));
        assert!(refused(&[(8, usize::MAX / 2), (8, usize::MAX / 2)]).contains("beyond"));
        assert!(message(part_count(usize::MAX, 2)).contains("beyond"));
        assert!(message(part_count(1, 0)).contains("0 parts"));
    }

    #[test]
    fn layers_are_equally_long_in_all_blocks() {
        let division = Division::by_numbers(3, &[2, 1]).unwrap();
        let checked = |parts: &[(usize, usize)]| checked(parts.iter().copied(), &division, 64);
        let (parts, layers) =
            checked(&[(8, 50), (100, 4), (200, 10), (300, 1), (400, 53), (500, 10)]).unwrap();
        assert_eq!((parts.len(), layers), (6, Layers::new([54, 10])));
        let refused = checked(&[(8, 50), (100, 4), (200, 10), (300, 1), (400, 52), (500, 11)]);
        assert!(message(refused).contains("layer 0 has 53 bytes in block 1, and 54 in block 0"));
        assert_eq!(checked(&[]).unwrap().1, Layers::new([64, 0]));
    }
}
