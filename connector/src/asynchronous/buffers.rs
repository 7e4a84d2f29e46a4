//! Memory that a transfer owns while it is under way.

use crate::dma::{DmaEngine, HostDma, Part};

/// The bytes of a block that is published: they stay as they are until the transfer gives them
/// back. Those of a GPU's memory stay as the engine's stream leaves them.
///
/// The order of the parts is the order of the bytes in the block.
pub trait Source<E: DmaEngine = HostDma>: Send + 'static {
    /// The bytes, in pieces that are gathered in this order.
    fn parts(&self) -> Vec<E::Source<'_>>;

    /// The bytes of one layer, in pieces that are gathered in this order. Of a publish by layers a
    /// layer stays as it is from when it is said to be ready. The other layers may be written
    /// meanwhile: nothing of them may be borrowed here.
    ///
    /// Unless this is implemented, a block has one layer, number 0.
    fn layer(&self, layer: usize) -> Vec<E::Source<'_>> {
        if layer == 0 { self.parts() } else { Vec::new() }
    }

    /// The length of all parts in bytes.
    fn block_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.bytes() as u64).sum()
    }
}

/// Where the bytes of a fetched block go. Nobody else reads or writes that memory until the
/// transfer gives it back; of a fetch by layers, a layer until it has arrived: what is borrowed
/// here is let go of by then, byte by byte, and not touched again ([`DmaEngine::load_by_layers`]).
/// The engine's stream may still use memory of a GPU for what it was given before.
pub trait Destination<E: DmaEngine = HostDma>: Send + 'static {
    /// The memory, in pieces that are filled in this order.
    fn parts_mut(&mut self) -> Vec<E::Destination<'_>>;

    /// The length of all parts in bytes.
    fn block_bytes(&mut self) -> u64 {
        self.parts_mut().iter().map(|part| part.bytes() as u64).sum()
    }
}

impl Source for Vec<u8> {
    fn parts(&self) -> Vec<&[u8]> {
        vec![self]
    }
}

impl Destination for Vec<u8> {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        vec![self]
    }
}

/// Each piece is a layer.
impl Source for Vec<Vec<u8>> {
    fn parts(&self) -> Vec<&[u8]> {
        self.iter().map(Vec::as_slice).collect()
    }

    fn layer(&self, layer: usize) -> Vec<&[u8]> {
        vec![&self[layer]]
    }
}

impl Destination for Vec<Vec<u8>> {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        self.iter_mut().map(Vec::as_mut_slice).collect()
    }
}
