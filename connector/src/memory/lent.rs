//! Blocks in memory that was lent.
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{Loan, StridedPart};
#[cfg(feature = "cuda")]
use crate::dma::cuda::{CudaDma, DeviceDestination, DeviceSource};
use crate::dma::{DmaEngine, HostDma};
use crate::{Destination, Source};

/// Whose memory the parts of a transfer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryOf {
    /// This process's: the processor copies.
    Process,
    /// That of the GPU which copies.
    Gpu,
}

/// A part of a block: not null, of one byte at least, and within half of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentPart {
    /// Where it starts.
    pub address: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// The parts of the blocks of a transfer. All blocks have equally many.
#[derive(Clone, Debug)]
pub enum LentParts {
    /// Each for itself.
    Listed {
        /// The parts of the first block in order, then those of the next.
        parts: Vec<LentPart>,
        /// Parts of a block, at least 1.
        a_block: usize,
    },
    /// At regular distances. An address is computed when a block is copied: a long prompt has millions
    /// of parts where each head of each layer is one, and the caller's thread must not list them.
    Strided {
        /// The parts of a block in order.
        parts: Arc<[StridedPart]>,
        /// Blocks of a row of the memory.
        steps: u32,
        /// Length of a block in bytes: that of all parts.
        bytes: u64,
        /// The numbers of the blocks in the memory, which has a block of each number.
        numbers: Arc<[u32]>,
    },
}

/// The blocks of a transfer, lent until the last of them is dropped.
pub struct LentBlocks<K> {
    /// Where they are.
    pub parts: LentParts,
    /// For each layer, which of the parts of a block are its own.
    pub layers: Arc<[Range<usize>]>,
    /// Whose memory it is.
    pub of: MemoryOf,
    /// That it is lent. Several transfers share a loan when each has other bytes of the same blocks.
    pub loan: Arc<Loan>,
    /// What keeps the memory there.
    pub keeps: K,
}

/// A block that is published.
pub struct LentSource<K>(Block<K>);

/// A block that is fetched into.
pub struct LentDestination<K>(Block<K>);

struct Block<K> {
    lent: Arc<LentBlocks<K>>,
    number: usize,
}

impl<K> fmt::Debug for LentBlocks<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBlocks").field("loan", &self.loan).finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for LentSource<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentSource").field(&self.0.number).finish()
    }
}

impl<K> fmt::Debug for LentDestination<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentDestination").field(&self.0.number).finish()
    }
}

impl<K> LentBlocks<K> {
    /// The blocks, to be published.
    ///
    /// # Safety
    /// The memory of each part exists, on the device that [`of`](Self::of) names, and nothing
    /// writes it until the returned blocks are dropped; of a publish by layers, a layer that is
    /// ready. The loan covers it. Blocks in GPU memory are given only to a transfer of that GPU,
    /// which nothing here can check. A stream that their transfer is ordered after may still write
    /// the memory.
    #[must_use]
    pub unsafe fn into_sources(self) -> Vec<LentSource<K>> {
        self.into_blocks().map(LentSource).collect()
    }

    /// The blocks, to be fetched into.
    ///
    /// # Safety
    /// As [`into_sources`](Self::into_sources), with a loan for writing. Nothing but such a stream
    /// reads the memory either; of a fetch by layers, a layer until it has arrived.
    #[must_use]
    pub unsafe fn into_destinations(self) -> Vec<LentDestination<K>> {
        self.into_blocks().map(LentDestination).collect()
    }

    fn into_blocks(self) -> impl Iterator<Item = Block<K>> {
        let blocks = self.parts.blocks();
        let lent = Arc::new(self);
        (0..blocks).map(move |number| Block { lent: Arc::clone(&lent), number })
    }
}

impl LentParts {
    /// How many blocks there are.
    fn blocks(&self) -> usize {
        match self {
            Self::Listed { parts, a_block } => parts.len() / (*a_block).max(1),
            Self::Strided { numbers, .. } => numbers.len(),
        }
    }

    /// How many parts a block has.
    fn a_block(&self) -> usize {
        match self {
            Self::Listed { a_block, .. } => *a_block,
            Self::Strided { parts, .. } => parts.len(),
        }
    }

    /// A part of a block.
    pub(super) fn part(&self, block: usize, part: usize) -> LentPart {
        match self {
            Self::Listed { parts, a_block } => parts[block * a_block + part],
            Self::Strided { parts, steps, numbers, .. } => parts[part].of(numbers[block], *steps),
        }
    }

    /// Length of a block in bytes.
    fn bytes(&self, block: usize) -> u64 {
        match self {
            Self::Listed { parts, a_block } => {
                let parts = &parts[block * a_block..][..*a_block];
                parts.iter().map(|part| part.bytes as u64).sum()
            }
            Self::Strided { bytes, .. } => *bytes,
        }
    }
}

impl<K> Block<K> {
    /// All of its parts, by their numbers.
    fn all(&self) -> Range<usize> {
        0..self.lent.parts.a_block()
    }

    /// Those of one layer; none when it has no such layer.
    fn layer(&self, layer: usize) -> Range<usize> {
        self.lent.layers.get(layer).cloned().unwrap_or_default()
    }

    /// These parts, in the memory of `whose`: the processor does not copy a GPU's, and a GPU does not
    /// copy a process's.
    fn parts(&self, whose: MemoryOf, parts: Range<usize>) -> impl Iterator<Item = LentPart> {
        assert_eq!(self.lent.of, whose, "a block in memory that another device copies");
        parts.map(|part| self.lent.parts.part(self.number, part))
    }

    fn bytes(&self) -> u64 {
        self.lent.parts.bytes(self.number)
    }
}

/// An engine that copies lent memory.
pub trait LentEngine: DmaEngine {
    /// Whose memory it copies.
    const COPIES: MemoryOf;

    /// A part that is read.
    ///
    /// # Safety
    /// It is memory that the engine copies. It exists for the life that the caller gives it, and nothing
    /// writes it, except for work of a stream that the copies come after.
    unsafe fn source<'a>(part: LentPart) -> Self::Source<'a>;

    /// A part that is written.
    ///
    /// # Safety
    /// As [`source`](Self::source), and nothing but such a stream reads it.
    unsafe fn destination<'a>(part: LentPart) -> Self::Destination<'a>;
}

impl LentEngine for HostDma {
    const COPIES: MemoryOf = MemoryOf::Process;

    unsafe fn source<'a>(part: LentPart) -> &'a [u8] {
        let address = std::ptr::with_exposed_provenance(part.address);
        // SAFETY: not null, and of a possible length; the rest by the caller's promise.
        unsafe { std::slice::from_raw_parts(address, part.bytes) }
    }

    unsafe fn destination<'a>(part: LentPart) -> &'a mut [u8] {
        let address = std::ptr::with_exposed_provenance_mut(part.address);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(address, part.bytes) }
    }
}

#[cfg(feature = "cuda")]
impl LentEngine for CudaDma {
    const COPIES: MemoryOf = MemoryOf::Gpu;

    unsafe fn source<'a>(part: LentPart) -> DeviceSource<'a> {
        // SAFETY: by the caller's promise.
        unsafe { DeviceSource::new(part.address as u64, part.bytes) }
    }

    unsafe fn destination<'a>(part: LentPart) -> DeviceDestination<'a> {
        // SAFETY: by the caller's promise.
        unsafe { DeviceDestination::new(part.address as u64, part.bytes) }
    }
}

impl<K> Block<K> {
    /// These parts, to be read.
    fn sources<E: LentEngine>(&self, parts: Range<usize>) -> Vec<E::Source<'_>> {
        // SAFETY: memory of whom the engine copies (`parts`). The lender promised that it exists and
        // stays unchanged until the block is dropped (`into_sources`), which is borrowed; of a GPU, that
        // the GPU is that of the transfer, which is ordered after a stream that still writes it. No
        // other transfer writes it (`Loan`).
        self.parts(E::COPIES, parts).map(|part| unsafe { E::source(part) }).collect()
    }
}

impl<K: Send + Sync + 'static, E: LentEngine> Source<E> for LentSource<K> {
    fn parts(&self) -> Vec<E::Source<'_>> {
        self.0.sources::<E>(self.0.all())
    }

    fn layer(&self, layer: usize) -> Vec<E::Source<'_>> {
        self.0.sources::<E>(self.0.layer(layer))
    }

    fn block_bytes(&self) -> u64 {
        self.0.bytes()
    }
}

impl<K: Send + Sync + 'static, E: LentEngine> Destination<E> for LentDestination<K> {
    fn parts_mut(&mut self) -> Vec<E::Destination<'_>> {
        // SAFETY: as above, and nothing else uses it (`into_destinations`): no other transfer (`Loan`),
        // and no other part of the same transfer.
        self.0.parts(E::COPIES, self.0.all()).map(|part| unsafe { E::destination(part) }).collect()
    }

    fn block_bytes(&mut self) -> u64 {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use crate::memory::{Access, Lending, Shape, StridedBlocks};

    #[test]
    fn blocks_and_layers_have_their_own_parts() {
        let mut memory = [[0u8; 4], [0; 4]];
        let part = |bytes: &mut [u8]| LentPart {
            address: bytes.as_mut_ptr().expose_provenance(),
            bytes: bytes.len(),
        };
        let [first, second] = &mut memory;
        let (low, high) = second.split_at_mut(1);
        let (all, most) = first.split_at_mut(3);
        let parts = vec![part(low), part(high), part(all), part(most)];
        let lending = Arc::<Lending>::default();
        let lent = |access| LentBlocks {
            parts: LentParts::Listed { parts: parts.clone(), a_block: 2 },
            layers: [0..1, 1..2].into(),
            of: MemoryOf::Process,
            loan: Arc::new(lending.lend(once(0..2), access).unwrap()),
            keeps: (),
        };
        // SAFETY: four parts of memory that is used again only after they are dropped.
        let destinations = unsafe { lent(Access::Write).into_destinations() };
        assert!(lending.lend(once(1..2), Access::Read).is_err(), "lent while a block is there");
        for (number, mut block) in (1..).zip(destinations) {
            Destination::<HostDma>::parts_mut(&mut block)
                .into_iter()
                .for_each(|part| part.fill(number));
        }
        // SAFETY: as above.
        let sources = unsafe { lent(Access::Read).into_sources() };
        let layers = [0, 1, 2].map(|layer| Source::<HostDma>::layer(&sources[1], layer).concat());
        assert_eq!(layers, [vec![2; 3], vec![2; 1], vec![]]);
        let lengths = sources.iter().map(Source::<HostDma>::block_bytes);
        assert_eq!(lengths.collect::<Vec<_>>(), [4, 4]);
        drop(sources);
        assert_eq!(memory, [[2; 4], [1; 4]]);
        assert!(lending.lend(once(0..2), Access::Write).is_ok(), "given back");
    }

    #[test]
    fn cuts_of_the_same_blocks_are_lent_once_and_copied_apart() {
        // Two layers of three rows of two blocks, with two heads of four bytes in each.
        let mut memory = [0u8; 2 * 3 * 2 * 2 * 4];
        let base = memory.as_mut_ptr().expose_provenance();
        let part = |head: usize, layer: usize| StridedPart {
            address: base + layer * 48 + head * 8,
            stride: 16,
            step: 4,
            bytes: 4,
        };
        let parts = [part(0, 0), part(0, 1), part(1, 0), part(1, 1)];
        let layers = Some(vec![1; 4]);
        let shape = Shape { blocks: 6, steps: 2, cuts: 2, layers, within: None };
        let blocks = StridedBlocks::new(&parts, &shape).unwrap();
        assert_eq!(
            (blocks.cuts(), blocks.block_bytes(), blocks.layer_bytes()),
            (2, 8, &[4, 4][..])
        );

        let lending = Arc::<Lending>::default();
        let numbers: Arc<[u32]> = [5, 0].into();
        let loan = lending.lend(blocks.spans(&numbers), Access::Write).unwrap();
        let loan = Arc::new(loan);
        for cut in 0..2 {
            let (parts, layers) = blocks.cut(cut, Arc::clone(&numbers)).unwrap();
            let loan = Arc::clone(&loan);
            let lent = LentBlocks { parts, layers, of: MemoryOf::Process, loan, keeps: () };
            // SAFETY: other bytes of the memory for each cut, used again only after they are dropped.
            let destinations = unsafe { lent.into_destinations() };
            for (number, mut block) in (1..).zip(destinations) {
                assert_eq!(Destination::<HostDma>::block_bytes(&mut block), 8);
                let parts = Destination::<HostDma>::parts_mut(&mut block);
                let fill = 10 * (u8::try_from(cut).unwrap() + 1) + number;
                parts.into_iter().for_each(|part| part.fill(fill));
            }
        }
        assert!(blocks.cut(2, numbers).is_none());
        let layer = |layer: usize| memory[48 * layer..][..48].chunks(4).map(|part| part[0]);
        // Rows of: head 0 of both blocks, then head 1 of both.
        let expected = [12, 0, 22, 0, 0, 0, 0, 0, 0, 11, 0, 21];
        assert!(layer(0).eq(expected) && layer(1).eq(expected), "{memory:?}");
        assert!(lending.lend(once(base..base + 1), Access::Read).is_err());
        drop(loan);
        assert!(lending.lend(once(base..base + 1), Access::Read).is_ok(), "given back");
    }
}
