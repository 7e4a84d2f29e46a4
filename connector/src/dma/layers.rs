//! Payloads that are copied one layer after the other.

use cxl_shm::units::{Extent, LINE_BYTES};

use super::DmaEngine;

/// How a payload is cut: the lengths of its layers, which lie in it one behind the other.
///
/// # Example
/// ```
/// use connector::dma::Layers;
///
/// let layers = Layers::new([4096, 4096, 1024]);
/// assert_eq!((layers.count(), layers.bytes()), (3, 9216));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layers {
    /// Where each layer ends, from the start of the payload.
    ends_bytes: Vec<u64>,
}

impl Layers {
    /// Layers of these lengths in bytes; each may be any, also 0.
    #[must_use]
    pub fn new(lengths_bytes: impl IntoIterator<Item = u64>) -> Self {
        let end = |end: &mut u64, bytes| {
            *end = end.saturating_add(bytes);
            Some(*end)
        };
        Self { ends_bytes: lengths_bytes.into_iter().scan(0, end).collect() }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends_bytes.len()
    }

    /// Length of a payload in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ends_bytes.last().copied().unwrap_or(0)
    }

    /// Length of a layer in bytes.
    pub(super) fn layer_bytes(&self, layer: usize) -> u64 {
        self.end(layer) - self.start(layer)
    }

    /// Where a layer starts and ends, from the start of the payload.
    pub(super) fn range(&self, layer: usize) -> (u64, u64) {
        (self.start(layer), self.end(layer))
    }

    /// What is read so that a layer is there. A line that two layers share is read once, with the
    /// first of them.
    pub(super) fn read_with(&self, payload: Extent, layer: usize) -> Extent {
        let whole_lines = |bytes: u64| bytes.next_multiple_of(LINE_BYTES).min(payload.bytes());
        between(payload, whole_lines(self.start(layer)), whole_lines(self.end(layer)))
    }

    /// What is complete when a layer is there and those before it. A line that two layers share is
    /// complete with the second of them.
    pub(super) fn complete_with(&self, payload: Extent, layer: usize) -> Extent {
        let whole_lines = |bytes: u64| {
            if bytes == payload.bytes() { bytes } else { bytes - bytes % LINE_BYTES }
        };
        between(payload, whole_lines(self.start(layer)), whole_lines(self.end(layer)))
    }

    fn start(&self, layer: usize) -> u64 {
        layer.checked_sub(1).map_or(0, |before| self.end(before))
    }

    fn end(&self, layer: usize) -> u64 {
        self.ends_bytes[layer]
    }
}

fn between(payload: Extent, start: u64, end: u64) -> Extent {
    payload.part(start, end - start).expect("a layer lies in its payload")
}

/// What copies one layer: it takes the parts of that layer, for each payload.
pub type CopyLayer<'c, E> = dyn for<'a> FnMut(&[Vec<<E as DmaEngine>::Source<'a>>]) + 'c;

/// Payloads whose layers become ready one after the other, to be stored by
/// [`DmaEngine::store_by_layers`].
pub trait LayeredSource<E: DmaEngine + ?Sized + 'static> {
    /// Waits until `layer` is ready, and has `copy` copy it. The parts are borrowed for the time of
    /// that call only.
    ///
    /// The answer is whether there is any use in going on: after `false`, which must not have called
    /// `copy`, no other layer is asked for.
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, E>) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_layers_share_are_read_and_completed_once() {
        for lengths in [vec![100, 28, 0, 1, 200], vec![64, 64], vec![7], vec![63, 1, 64, 2]] {
            let layers = Layers::new(lengths.iter().copied());
            let payload = Extent::new(4096, layers.bytes()).unwrap();
            let (mut read, mut complete, mut end) = (4096, 4096, 4096);
            for (layer, bytes) in lengths.iter().enumerate() {
                end += bytes;
                assert_eq!(layers.layer_bytes(layer), *bytes);
                let next = layers.read_with(payload, layer);
                assert_eq!(next.offset(), read, "{lengths:?}");
                read = next.end();
                assert!(read >= end, "the layer is there: {lengths:?}");
                assert!(read.is_multiple_of(64) || read == payload.end());
                let next = layers.complete_with(payload, layer);
                assert_eq!(next.offset(), complete, "{lengths:?}");
                complete = next.end();
                assert!(complete <= end, "nothing of later layers: {lengths:?}");
                assert!(complete.is_multiple_of(64) || complete == payload.end());
            }
            assert_eq!((read, complete), (payload.end(), payload.end()));
        }
    }
}
