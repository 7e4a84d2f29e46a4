//! Payloads that are copied one layer after the other.

use cxl_shm::units::{Extent, LINE_BYTES};

use super::DmaEngine;

/// How a payload is cut: the lengths of its layers, which lie in it one behind the other.
///
/// # Example
/// ```
/// use rackline::dma::Layers;
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
    pub(crate) fn layer_bytes(&self, layer: usize) -> u64 {
        self.end(layer) - self.start(layer)
    }

    /// The first layer that does not begin on a line of 64 bytes, and so cannot be read alone.
    #[must_use]
    pub fn first_off_line(&self) -> Option<usize> {
        (0..self.count()).find(|layer| !self.is_on_line(*layer))
    }

    pub(crate) fn is_on_line(&self, layer: usize) -> bool {
        self.start(layer).is_multiple_of(LINE_BYTES)
    }

    /// A layer of `payload`.
    pub(crate) fn of(&self, payload: Extent, layer: usize) -> Extent {
        between(payload, self.start(layer), self.end(layer))
    }

    /// What is read so that a layer is there. A line that two layers share is read once, with the
    /// first of them.
    pub(super) fn read_with(&self, payload: Extent, layer: usize) -> Extent {
        let whole_lines = |bytes: u64| bytes.next_multiple_of(LINE_BYTES).min(payload.bytes());
        between(payload, whole_lines(self.start(layer)), whole_lines(self.end(layer)))
    }

    /// What is complete when a layer is there and those before it. A line that two layers share is
    /// complete with the second of them.
    #[cfg(any(test, feature = "cuda"))]
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

/// What copies one layer: it takes the parts of that layer, an entry for each payload. It panics
/// when it is called a second time for a layer, or there is another number of entries.
pub type CopyLayer<'c, E> = dyn for<'a> FnMut(&[Vec<<E as DmaEngine>::Source<'a>>]) + 'c;

/// Payloads whose layers become ready one after the other, to be stored by
/// [`DmaEngine::store_by_layers`].
pub trait LayeredSource<E: DmaEngine + ?Sized + 'static> {
    /// Waits until `layer` is ready, and has `copy` copy it, once. The parts are borrowed for the
    /// time of that call only.
    ///
    /// The answer is whether there is any use in going on: after `false`, which must not have
    /// called `copy`, no other layer is asked for.
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, E>) -> bool;
}

/// What an engine does with a layer: it gets its number, and its parts for each payload.
pub(super) type StoreLayer<'s, E> =
    dyn for<'a> FnMut(usize, &[Vec<<E as DmaEngine>::Source<'a>>]) + 's;

/// Has `store` store each layer of that many payloads, as `source` has them ready, once and in
/// order. Whether it was not broken off.
///
/// # Panics
/// When the source does not keep its contract: the checksum would be that of other bytes than those
/// of the payload.
pub(super) fn store_each<E: DmaEngine>(
    layers: &Layers,
    payloads: usize,
    source: &mut dyn LayeredSource<E>,
    store: &mut StoreLayer<'_, E>,
) -> bool {
    (0..layers.count()).all(|layer| {
        let mut copied = false;
        let goes_on = source.layer(layer, &mut |parts| {
            assert!(!copied, "layer {layer} was given twice");
            let given = parts.len();
            assert_eq!(given, payloads, "layer {layer} was given for another number of payloads");
            copied = true;
            store(layer, parts);
        });
        assert_eq!(
            copied, goes_on,
            "layer {layer} is missing, or was supplied by a publish that was aborted"
        );
        goes_on
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cxl_shm::fabric::{MappedFabric, Mapping};
    use cxl_shm::verify::simulated::{DmaCache, SimulatedRack};

    use super::*;
    use crate::dma::{Checksum, DmaError, HostDma, SimulatedDma};

    const REGION_BYTES: u64 = 8192;

    /// Gives the second of two layers so often, for so many payloads, and says that it continues or
    /// not.
    struct Gives {
        times: usize,
        payloads: usize,
        goes_on: bool,
    }

    impl<E> LayeredSource<E> for Gives
    where
        E: for<'a> DmaEngine<Source<'a> = &'a [u8]>,
    {
        fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, E>) -> bool {
            let given =
                if layer == 0 { &Gives { times: 1, payloads: 2, goes_on: true } } else { self };
            for _ in 0..given.times {
                copy(&vec![vec![&[7; 64][..]]; given.payloads]);
            }
            given.goes_on
        }
    }

    type Stored = Option<Vec<Result<Checksum, DmaError>>>;

    /// What comes of it, with an engine; `None` is a panic.
    fn store<E>(dma: &E, mut gives: Gives) -> Option<Stored>
    where
        E: for<'a> DmaEngine<Source<'a> = &'a [u8]>,
    {
        let payloads = [0, 4096].map(|offset| Extent::new(offset, 128).unwrap());
        let store = || dma.store_by_layers(&payloads, &Layers::new([64, 64]), &mut gives);
        catch_unwind(AssertUnwindSafe(store)).ok()
    }

    fn check_what_is_counted<E>(dma: &E)
    where
        E: for<'a> DmaEngine<Source<'a> = &'a [u8]>,
    {
        let gives = |times, payloads, goes_on| store(dma, Gives { times, payloads, goes_on });
        let checksum = Checksum::of(&[&[7; 128]]);
        assert_eq!(gives(1, 2, true), Some(Some(vec![Ok(checksum); 2])));
        assert_eq!(gives(0, 2, false), Some(None));
        for (times, payloads, goes_on, what) in [
            (1, 1, true, "fewer payloads: what is there already would be announced"),
            (1, 3, true, "more payloads"),
            (0, 2, true, "nothing: the checksum would be that of fewer bytes"),
            (2, 2, true, "twice: the second would lie behind the payload"),
            (1, 2, false, "by a source that then aborts"),
        ] {
            assert_eq!(gives(times, payloads, goes_on), None, "{what}");
        }
    }

    #[test]
    fn each_layer_is_given_once_for_all_payloads() {
        let rack = SimulatedRack::sticky(1, REGION_BYTES);
        check_what_is_counted(&SimulatedDma::new(rack.host(0), DmaCache::Bypass));
        let file = tempfile::tempfile().unwrap();
        file.set_len(REGION_BYTES).unwrap();
        let mapping = Mapping::shared(&file, REGION_BYTES).unwrap();
        check_what_is_counted(&HostDma::new(MappedFabric::new(mapping).unwrap()));
    }

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
