//! Blocks in memory that was lent.
#![expect(unsafe_code, reason = "the memory is known by its addresses")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Loan;
#[cfg(feature = "cuda")]
use crate::dma::cuda::{CudaDma, DeviceDestination, DeviceSource};
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

/// The blocks of a transfer, lent until the last of them is dropped.
pub struct LentBlocks<K> {
    /// The parts of the first block in order, then those of the next.
    pub parts: Vec<LentPart>,
    /// Parts of a block, at least 1.
    pub parts_a_block: usize,
    /// For each layer, which of the parts of a block are its own.
    pub layers: Vec<Range<usize>>,
    /// Whose memory it is.
    pub of: MemoryOf,
    /// That it is lent.
    pub loan: Loan,
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
        let blocks = self.parts.len() / self.parts_a_block.max(1);
        let lent = Arc::new(self);
        (0..blocks).map(move |number| Block { lent: Arc::clone(&lent), number })
    }
}

impl<K> Block<K> {
    /// Its parts, in the memory of `whose`: the processor does not copy a GPU's, and a GPU does not
    /// copy a process's.
    fn parts_of(&self, whose: MemoryOf) -> &[LentPart] {
        assert_eq!(self.lent.of, whose, "a block in memory that another device copies");
        let start = self.number * self.lent.parts_a_block;
        &self.lent.parts[start..start + self.lent.parts_a_block]
    }

    /// Those of one layer; none when it has no such layer.
    fn layer_of(&self, whose: MemoryOf, layer: usize) -> &[LentPart] {
        let parts = self.lent.layers.get(layer).cloned().unwrap_or_default();
        &self.parts_of(whose)[parts]
    }
}

/// The bytes of parts of this process's memory.
fn bytes(parts: &[LentPart]) -> Vec<&[u8]> {
    let part = |part: &LentPart| {
        let address = std::ptr::with_exposed_provenance(part.address);
        // SAFETY: memory of this process (`parts_of`), not null, and of a possible length. The
        // lender promised that it exists and stays unchanged until the block is dropped
        // (`into_sources`), of which the parts are borrowed. No other transfer writes it (`Loan`).
        unsafe { std::slice::from_raw_parts(address, part.bytes) }
    };
    parts.iter().map(part).collect()
}

impl<K: Send + Sync + 'static> Source for LentSource<K> {
    fn parts(&self) -> Vec<&[u8]> {
        bytes(self.0.parts_of(MemoryOf::Process))
    }

    fn layer(&self, layer: usize) -> Vec<&[u8]> {
        bytes(self.0.layer_of(MemoryOf::Process, layer))
    }
}

impl<K: Send + Sync + 'static> Destination for LentDestination<K> {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        let part = |part: &LentPart| {
            let address = std::ptr::with_exposed_provenance_mut(part.address);
            // SAFETY: as above, and nothing else uses it (`into_destinations`): no other transfer
            // (`Loan`), and no other part of the same transfer.
            unsafe { std::slice::from_raw_parts_mut(address, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Process).iter().map(part).collect()
    }
}

/// Parts of a GPU's memory.
#[cfg(feature = "cuda")]
fn device(parts: &[LentPart]) -> Vec<DeviceSource<'_>> {
    let part = |part: &LentPart| {
        // SAFETY: as above, of a GPU (`parts_of`), which is that of the transfer: the lender gives
        // the blocks to no other (`into_sources`). The transfer is ordered after the work of the
        // stream that still writes them.
        unsafe { DeviceSource::new(part.address as u64, part.bytes) }
    };
    parts.iter().map(part).collect()
}

#[cfg(feature = "cuda")]
impl<K: Send + Sync + 'static> Source<CudaDma> for LentSource<K> {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        device(self.0.parts_of(MemoryOf::Gpu))
    }

    fn layer(&self, layer: usize) -> Vec<DeviceSource<'_>> {
        device(self.0.layer_of(MemoryOf::Gpu, layer))
    }
}

#[cfg(feature = "cuda")]
impl<K: Send + Sync + 'static> Destination<CudaDma> for LentDestination<K> {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |part: &LentPart| {
            // SAFETY: as above (`into_destinations`), and nothing else uses it: no other transfer,
            // and no other part.
            unsafe { DeviceDestination::new(part.address as u64, part.bytes) }
        };
        self.0.parts_of(MemoryOf::Gpu).iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use crate::dma::HostDma;
    use crate::memory::{Access, Lending};

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
            parts: parts.clone(),
            parts_a_block: 2,
            layers: vec![0..1, 1..2],
            of: MemoryOf::Process,
            loan: lending.lend(once(0..2), access).unwrap(),
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
        drop(sources);
        assert_eq!(memory, [[2; 4], [1; 4]]);
        assert!(lending.lend(once(0..2), Access::Write).is_ok(), "given back");
    }
}
