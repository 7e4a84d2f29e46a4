//! Memory that a transfer owns while it is under way.

/// Bytes that are published: they stay as they are until the transfer gives them back.
///
/// The order of the parts is the order of the bytes in the block.
pub trait Source: Send + 'static {
    /// The bytes, in pieces that are gathered in this order.
    fn parts(&self) -> Vec<&[u8]>;
}

/// Where fetched bytes go. Nobody else reads or writes them until the transfer gives them back; of a
/// fetch by layers, a layer until it has arrived: what is borrowed here is let go of by then, byte by
/// byte, and not touched again ([`DmaEngine::load_by_layers`](crate::dma::DmaEngine::load_by_layers)).
pub trait Destination: Send + 'static {
    /// The memory, in pieces that are filled in this order.
    fn parts_mut(&mut self) -> Vec<&mut [u8]>;
}

/// Bytes that are published by layers: a layer stays as it is from when it is said to be ready until the
/// transfer gives it back.
pub trait LayerSource: Send + 'static {
    /// The bytes of a layer that is ready, in pieces that are gathered in this order. The other layers
    /// may be written meanwhile.
    fn layer(&self, layer: usize) -> Vec<&[u8]>;
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

/// One piece for each layer, say.
impl Source for Vec<Vec<u8>> {
    fn parts(&self) -> Vec<&[u8]> {
        self.iter().map(Vec::as_slice).collect()
    }
}

impl Destination for Vec<Vec<u8>> {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        self.iter_mut().map(Vec::as_mut_slice).collect()
    }
}

/// A piece is a layer.
impl LayerSource for Vec<Vec<u8>> {
    fn layer(&self, layer: usize) -> Vec<&[u8]> {
        vec![&self[layer]]
    }
}
