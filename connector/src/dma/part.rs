//! Memory of an engine.

/// A piece of the memory that a [`DmaEngine`](super::DmaEngine) copies from or to.
pub trait Part {
    /// Length in bytes; may be 0.
    fn bytes(&self) -> usize;
}

impl Part for &[u8] {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Part for &mut [u8] {
    fn bytes(&self) -> usize {
        self.len()
    }
}
