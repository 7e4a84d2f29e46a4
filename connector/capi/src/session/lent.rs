//! Memory that C lends to a transfer (I7).
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use connector::dma::cuda::{DeviceDestination, DeviceSource};
use connector::transfer::{Destination, GpuDestination, GpuSource, Source};

use super::arguments::values;
use super::error::Failure;
use super::lending::{Lending, Loan, Span};

/// A part of a block that is published. It stays as it is until the publish is over.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineSource {
    /// Where it starts: in memory of this process, or of the GPU that it is published from.
    pub address: *const c_void,
    /// Its length in bytes, at least 1.
    pub bytes: usize,
}

/// A part of a block that is fetched. Nobody else reads or writes it until the fetch is over.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineDestination {
    /// Where it starts: in memory of this process, or of the GPU that it is fetched into.
    pub address: *mut c_void,
    /// Its length in bytes, at least 1.
    pub bytes: usize,
}

/// Whose memory the parts of a transfer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryOf {
    /// This process's: the processor copies.
    Process,
    /// That of the GPU which copies.
    Gpu,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Part {
    address: usize,
    bytes: usize,
}

impl Part {
    fn end(self) -> usize {
        self.address + self.bytes
    }

    fn span(self) -> Span {
        self.address..self.end()
    }
}

/// A block that is published.
pub(super) struct LentSource(Block);

/// A block that is fetched into.
pub(super) struct LentDestination(Block);

/// Some parts of those of a transfer.
struct Block {
    lent: Arc<Lent>,
    mine: Range<usize>,
}

/// The memory of a transfer, lent until its last block is dropped.
struct Lent {
    parts: Vec<Part>,
    of: MemoryOf,
    _loan: Loan,
}

impl Lent {
    fn new(
        parts: Vec<Part>,
        of: MemoryOf,
        lending: &'static Lending,
        writes: bool,
    ) -> Result<Arc<Self>, Failure> {
        let loan = lending.lend(parts.iter().map(|part| part.span()).collect(), writes)?;
        Ok(Arc::new(Self { parts, of, _loan: loan }))
    }
}

/// The sources of `blocks` blocks, whose parts follow one another.
///
/// # Safety
/// `parts` is null or points to `blocks * parts_a_block` parts. The memory of each exists, as that `of`
/// whom it is said to be, and nobody writes it, until what is returned is dropped. Blocks of a GPU's
/// memory are given to a transfer of that GPU only, which nothing here can check, and a stream that their
/// transfer comes after may write it still.
pub(super) unsafe fn sources_at(
    parts: *const RacklineSource,
    blocks: usize,
    parts_a_block: usize,
    block_bytes: u64,
    of: MemoryOf,
    lending: &'static Lending,
) -> Result<Vec<LentSource>, Failure> {
    let count = part_count(blocks, parts_a_block)?;
    // SAFETY: by the caller's promise.
    let parts = unsafe { values(parts, count, "the parts of the blocks") }?;
    let parts = parts.iter().map(|part| (part.address.expose_provenance(), part.bytes));
    let parts = checked(parts, parts_a_block, block_bytes)?;
    let lent = Lent::new(parts, of, lending, false)?;
    Ok(divided(&lent, parts_a_block).map(LentSource).collect())
}

/// The destinations of `blocks` blocks, whose parts follow one another.
///
/// # Safety
/// As [`sources_at`], and nobody but such a stream reads the memory either.
pub(super) unsafe fn destinations_at(
    parts: *const RacklineDestination,
    blocks: usize,
    parts_a_block: usize,
    block_bytes: u64,
    of: MemoryOf,
    lending: &'static Lending,
) -> Result<Vec<LentDestination>, Failure> {
    let count = part_count(blocks, parts_a_block)?;
    // SAFETY: by the caller's promise.
    let parts = unsafe { values(parts, count, "the parts of the blocks") }?;
    let parts = parts.iter().map(|part| (part.address.expose_provenance(), part.bytes));
    let parts = checked(parts, parts_a_block, block_bytes)?;
    check_apart(&parts)?;
    let lent = Lent::new(parts, of, lending, true)?;
    Ok(divided(&lent, parts_a_block).map(LentDestination).collect())
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

/// The parts, if they can be and those of each block are as long as a block.
fn checked(
    parts: impl Iterator<Item = (usize, usize)>,
    parts_a_block: usize,
    block_bytes: u64,
) -> Result<Vec<Part>, Failure> {
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
        checked.push(Part { address, bytes });
    }
    for (block, parts) in checked.chunks(parts_a_block.max(1)).enumerate() {
        // None is longer than all memory, and there are fewer than 2^63 of them.
        let bytes: u128 = parts.iter().map(|part| part.bytes as u128).sum();
        if bytes != u128::from(block_bytes) {
            let message = format!(
                "the parts of block {block} have {bytes} bytes, a block of the session {block_bytes}"
            );
            return Err(Failure::bad_argument(message));
        }
    }
    Ok(checked)
}

/// Refuses destinations that lie one over another.
fn check_apart(parts: &[Part]) -> Result<(), Failure> {
    if parts.windows(2).all(|pair| pair[0].end() <= pair[1].address) {
        return Ok(());
    }
    let mut sorted = parts.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].end() > pair[1].address) {
        None => Ok(()),
        Some(pair) => Err(Failure::bad_argument(format!(
            "two destinations lie one over the other: {} bytes at {:#x} and {} at {:#x}",
            pair[0].bytes, pair[0].address, pair[1].bytes, pair[1].address
        ))),
    }
}

fn divided(lent: &Arc<Lent>, parts_a_block: usize) -> impl Iterator<Item = Block> {
    let starts = (0..lent.parts.len()).step_by(parts_a_block.max(1));
    starts.map(move |start| Block {
        lent: Arc::clone(lent),
        mine: start..start + parts_a_block.max(1),
    })
}

impl Block {
    /// Its parts, which are memory of `whose`: the processor copies none of a GPU, and the other way
    /// round.
    fn parts_of(&self, whose: MemoryOf) -> &[Part] {
        assert_eq!(self.lent.of, whose, "a block is copied by whom it was lent to");
        &self.lent.parts[self.mine.clone()]
    }
}

impl Source for LentSource {
    fn parts(&self) -> Vec<&[u8]> {
        let part = |part: &Part| {
            let address = std::ptr::with_exposed_provenance(part.address);
            // SAFETY: memory of this process (`parts_of`), not null, and of a length that can be
            // (`checked`). Who lent it sees to it that it exists and stays unchanged until this is
            // dropped (`sources_at`), which is before the transfer says that it is over; no other
            // transfer writes it (`Lending`).
            unsafe { std::slice::from_raw_parts(address, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Process).iter().map(part).collect()
    }
}

impl Destination for LentDestination {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        let part = |part: &Part| {
            let address = std::ptr::with_exposed_provenance_mut(part.address);
            // SAFETY: as above, and nobody else uses it (`destinations_at`): no other transfer does
            // (`Lending`), and no other part of the same one (`check_apart`).
            unsafe { std::slice::from_raw_parts_mut(address, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Process).iter().map(part).collect()
    }
}

impl GpuSource for LentSource {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        let part = |part: &Part| {
            // SAFETY: as above, of a GPU (`parts_of`), which is the one of the transfer: who lent the
            // blocks promised that they are memory of that one, and gives them to no other
            // (`sources_at`). What its stream still writes is what the transfer comes after.
            unsafe { DeviceSource::new(part.address as u64, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Gpu).iter().map(part).collect()
    }
}

impl GpuDestination for LentDestination {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |part: &Part| {
            // SAFETY: as above (`destinations_at`), and nobody else uses it: no other transfer, and no
            // other part.
            unsafe { DeviceDestination::new(part.address as u64, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Gpu).iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(outcome: Result<T, Failure>) -> String {
        let failure = outcome.err().expect("it is refused");
        failure.message.into_owned().into_string().unwrap()
    }

    fn apart(parts: &[(usize, usize)]) -> Result<(), Failure> {
        let part = |(address, bytes): &(usize, usize)| Part { address: *address, bytes: *bytes };
        check_apart(&parts.iter().map(part).collect::<Vec<_>>())
    }

    #[test]
    fn destinations_that_touch_pass_and_those_that_overlap_do_not() {
        apart(&[]).unwrap();
        apart(&[(100, 10), (110, 10), (200, 1)]).unwrap();
        apart(&[(200, 1), (110, 10), (100, 10)]).unwrap();
        for overlapping in [
            [(100, 11), (110, 10), (300, 1)],
            [(110, 10), (100, 11), (300, 1)],
            [(100, 500), (700, 1), (110, 1)],
            [(100, 10), (300, 1), (100, 10)],
        ] {
            assert!(message(apart(&overlapping)).contains("one over the other"));
        }
    }

    #[test]
    fn parts_that_cannot_be_or_do_not_fit_are_refused() {
        let refused = |parts: &[(usize, usize)]| message(checked(parts.iter().copied(), 2, 64));
        assert_eq!(
            checked([(8, 60), (100, 4), (200, 1), (300, 63)].into_iter(), 2, 64).unwrap().len(),
            4
        );
        assert!(refused(&[(8, 60), (0, 4)]).contains("part 1 of block 0 has no address"));
        assert!(refused(&[(8, 60), (8, 4), (8, 0), (8, 64)]).contains("part 0 of block 1"));
        assert!(refused(&[(usize::MAX, 60), (8, 4)]).contains("beyond"));
        assert!(refused(&[(8, 60), (8, 5)]).contains("block 0 have 65 bytes"));
        assert!(refused(&[(8, usize::MAX / 2), (8, usize::MAX / 2)]).contains("beyond"));
        assert!(message(part_count(usize::MAX, 2)).contains("beyond"));
        assert!(message(part_count(1, 0)).contains("0 parts"));
    }

    #[test]
    fn blocks_have_their_own_parts() {
        let mut bytes = [[0u8; 4], [0; 4]];
        let [first, second] = &mut bytes;
        let part = |from: &mut [u8]| RacklineDestination {
            address: from.as_mut_ptr().cast(),
            bytes: from.len(),
        };
        let (low, high) = second.split_at_mut(1);
        let (all, most) = first.split_at_mut(3);
        let parts = [part(low), part(high), part(all), part(most)];
        let lending = Box::leak(Box::default());
        // SAFETY: four parts of memory that is used again only after they are dropped.
        let lent = unsafe { destinations_at(parts.as_ptr(), 2, 2, 4, MemoryOf::Process, lending) };
        for (number, mut block) in (1..).zip(lent.unwrap()) {
            for part in Destination::parts_mut(&mut block) {
                part.fill(number);
            }
        }
        assert_eq!(bytes, [[2; 4], [1; 4]]);
    }
}
