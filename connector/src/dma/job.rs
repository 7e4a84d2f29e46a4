//! What to copy, checked before a byte moves.

use cxl_shm::units::{Extent, LINE_BYTES, LineRange};

use super::{DmaError, Layers, Part};

/// One payload on its way into the pool.
#[derive(Clone, Copy, Debug)]
pub struct StoreJob<'a, S = &'a [u8]> {
    /// Where in the region. Starts on a line (payload slots start on a page, rule MEM-M6).
    pub payload: Extent,
    /// The bytes, gathered in this order. Their lengths add up to `payload.bytes()`; each may be
    /// any, also 0.
    pub parts: &'a [S],
}

/// One payload on its way out of the pool.
#[derive(Debug)]
pub struct LoadJob<D> {
    /// Where in the region. Starts on a line.
    pub payload: Extent,
    /// Where the bytes go, scattered in this order. Their lengths add up to `payload.bytes()`.
    pub parts: Vec<D>,
}

impl<S: Part> StoreJob<'_, S> {
    /// The payload, if it can be stored in a region of `region_bytes` bytes.
    pub(super) fn check(&self, region_bytes: u64) -> Result<Extent, DmaError> {
        check(self.payload, self.parts.iter().map(Part::bytes), region_bytes)
    }
}

impl<D: Part> LoadJob<D> {
    /// The payload, if it can be loaded from a region of `region_bytes` bytes.
    pub(super) fn check(&self, region_bytes: u64) -> Result<Extent, DmaError> {
        check(self.payload, self.parts.iter().map(Part::bytes), region_bytes)
    }

    /// The payload, if it can be loaded by these layers.
    pub(super) fn check_layers(
        &self,
        layers: &Layers,
        region_bytes: u64,
    ) -> Result<Extent, DmaError> {
        check_layers(self.payload, layers, region_bytes).and_then(|_| self.check(region_bytes))
    }
}

/// The payload, if it is as long as the layers and lies in a region of `region_bytes` bytes.
pub(super) fn check_layers(
    payload: Extent,
    layers: &Layers,
    region_bytes: u64,
) -> Result<Extent, DmaError> {
    check_place(payload, region_bytes)?;
    check_length(payload, layers.bytes())
}

/// Whether these are parts of one layer of `payload`.
pub(super) fn check_layer<S: Part>(
    payload: Extent,
    layer_bytes: u64,
    parts: &[S],
) -> Result<(), DmaError> {
    let layer = payload.part(0, layer_bytes).expect("a layer is not longer than its payload");
    check_length(layer, sum(parts.iter().map(Part::bytes))).map(|_| ())
}

fn check(
    payload: Extent,
    part_lengths: impl Iterator<Item = usize>,
    region_bytes: u64,
) -> Result<Extent, DmaError> {
    check_place(payload, region_bytes)?;
    check_length(payload, sum(part_lengths))
}

fn check_place(payload: Extent, region_bytes: u64) -> Result<Extent, DmaError> {
    if !payload.offset().is_multiple_of(LINE_BYTES) {
        return Err(DmaError::Misaligned { payload });
    }
    // Whole lines are moved, so the last one has to be there to its end.
    if LineRange::covering(payload).end_bytes() > region_bytes {
        return Err(DmaError::OutOfRange { payload, region_bytes });
    }
    Ok(payload)
}

fn sum(part_lengths: impl Iterator<Item = usize>) -> u64 {
    part_lengths.map(|bytes| bytes as u64).fold(0, u64::saturating_add)
}

fn check_length(payload: Extent, parts_bytes: u64) -> Result<Extent, DmaError> {
    if parts_bytes != payload.bytes() {
        return Err(DmaError::LengthMismatch { payload_bytes: payload.bytes(), parts_bytes });
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(offset: u64, bytes: u64, parts: &[&[u8]]) -> Result<Extent, DmaError> {
        let payload = Extent::new(offset, bytes).unwrap();
        StoreJob { payload, parts }.check(4096)
    }

    #[test]
    fn parts_of_any_lengths_that_add_up_are_taken() {
        assert_eq!(stored(64, 5, &[b"ab", b"", b"cde"]), Ok(Extent::new(64, 5).unwrap()));
        assert_eq!(stored(4096, 0, &[]), Ok(Extent::new(4096, 0).unwrap()));
    }

    #[test]
    fn lengths_that_do_not_add_up_are_refused() {
        let wrong = |parts_bytes| Err(DmaError::LengthMismatch { payload_bytes: 5, parts_bytes });
        assert_eq!(stored(64, 5, &[b"abcd"]), wrong(4));
        assert_eq!(stored(64, 5, &[b"abc", b"def"]), wrong(6));
    }

    #[test]
    fn a_payload_lies_on_lines_inside_the_region() {
        let misaligned = stored(65, 1, &[b"a"]).unwrap_err();
        assert!(matches!(misaligned, DmaError::Misaligned { .. }), "{misaligned}");
        assert!(stored(4032, 64, &[&[0; 64]]).is_ok());
        let outside = stored(4032, 65, &[&[0; 65]]).unwrap_err();
        assert!(matches!(outside, DmaError::OutOfRange { region_bytes: 4096, .. }), "{outside}");
    }
}
