//! How C divides blocks into layers.
#![expect(unsafe_code, reason = "an array that C passes")]

use std::ops::Range;
use std::sync::Arc;

use super::arguments::{value, values};
use super::error::Failure;

/// Layers of a block at most.
const LAYERS_MAX: usize = 65_536;

/// How the parts of each block are divided into layers: the first parts are those of layer 0, the
/// next ones those of layer 1, and so on. A layer has the same length in all blocks of a transfer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineLayers {
    /// How many layers a block has, from 1 to 65536.
    pub count: usize,
    /// How many parts each layer has: `count` numbers of at least 1, whose sum is the number of
    /// parts of a block. Null: all layers have equally many parts.
    pub parts_of_layer: *const usize,
}

/// Which parts of a block each layer has. A transfer of whole blocks has one layer.
#[derive(Clone, Debug)]
pub(super) struct Division(Arc<[Range<usize>]>);

impl Division {
    /// That of blocks of so many parts: by layers, if some are given.
    ///
    /// # Safety
    /// The address is null or points to layers, whose numbers are null or as many as they say. All
    /// stay unchanged during the call.
    pub(super) unsafe fn of(
        parts_a_block: usize,
        layers: Option<*const RacklineLayers>,
    ) -> Result<Self, Failure> {
        let Some(layers) = layers else { return Ok(Self::whole(parts_a_block)) };
        // SAFETY: by the caller's promise.
        let RacklineLayers { count, parts_of_layer } = *unsafe { value(layers, "the layers") }?;
        if !(1..=LAYERS_MAX).contains(&count) {
            let message = format!("blocks of {count} layers: a block has 1 to {LAYERS_MAX}");
            return Err(Failure::bad_argument(message));
        }
        if parts_of_layer.is_null() {
            return Self::equal(parts_a_block, count);
        }
        // SAFETY: by the caller's promise.
        let numbers = unsafe { values(parts_of_layer, count, "the parts of each layer") }?;
        Self::by_numbers(parts_a_block, numbers)
    }

    pub(super) fn whole(parts_a_block: usize) -> Self {
        Self(std::iter::once(0..parts_a_block).collect())
    }

    fn equal(parts_a_block: usize, count: usize) -> Result<Self, Failure> {
        let each = parts_a_block / count;
        if each == 0 || !parts_a_block.is_multiple_of(count) {
            return Err(Failure::bad_argument(format!(
                "{parts_a_block} parts cannot be divided equally into {count} layers: set \
                 parts_of_layer"
            )));
        }
        Ok(Self((0..count).map(|layer| layer * each..(layer + 1) * each).collect()))
    }

    pub(super) fn by_numbers(parts_a_block: usize, numbers: &[usize]) -> Result<Self, Failure> {
        let mut layers = Vec::with_capacity(numbers.len());
        let mut start = 0usize;
        for (layer, parts) in numbers.iter().enumerate() {
            let end = start.checked_add(*parts).filter(|end| *end <= parts_a_block);
            let Some(end) = end.filter(|end| *end > start) else {
                return Err(Failure::bad_argument(format!(
                    "layer {layer} has {parts} parts, and {} of the {parts_a_block} parts of a \
                     block are left: a layer has at least 1",
                    parts_a_block - start
                )));
            };
            layers.push(start..end);
            start = end;
        }
        if start < parts_a_block {
            let message = format!("the layers have {start} parts, a block has {parts_a_block}");
            return Err(Failure::bad_argument(message));
        }
        Ok(Self(layers.into()))
    }

    /// The parts of each layer, by their numbers in a block.
    pub(super) fn layers(&self) -> &Arc<[Range<usize>]> {
        &self.0
    }

    /// How many parts a block has.
    pub(super) fn parts_a_block(&self) -> usize {
        self.0.last().map_or(0, |layer| layer.end)
    }
}

/// Refuses the number of a layer that is not one of so many.
pub(super) fn check_layer(layer: usize, layers: usize) -> Result<(), Failure> {
    if layer < layers {
        return Ok(());
    }
    Err(Failure::bad_argument(format!("there is no layer {layer}: a block has {layers}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program passes.
    fn of(
        parts_a_block: usize,
        count: usize,
        numbers: Option<&[usize]>,
    ) -> Result<Division, Failure> {
        let parts_of_layer = numbers.map_or(std::ptr::null(), <[usize]>::as_ptr);
        let layers = RacklineLayers { count, parts_of_layer };
        // SAFETY: the tests pass as many numbers as they say, or a number that is refused.
        unsafe { Division::of(parts_a_block, Some(&raw const layers)) }
    }

    #[test]
    fn layers_have_the_parts_that_follow_one_another() {
        let three = of(6, 3, None).unwrap();
        assert_eq!(**three.layers(), [0..2, 2..4, 4..6]);
        let by_numbers = of(6, 3, Some(&[1, 4, 1])).unwrap();
        assert_eq!(**by_numbers.layers(), [0..1, 1..5, 5..6]);
        for (parts, division) in [(6, three), (6, by_numbers), (3, Division::whole(3))] {
            assert_eq!(division.parts_a_block(), parts);
        }
        let none = Division::whole(0);
        assert_eq!((none.parts_a_block(), none.layers().len()), (0, 1));
    }

    #[test]
    fn layers_that_are_no_division_are_refused() {
        let message = |refused: Result<Division, Failure>| {
            refused.unwrap_err().message.into_owned().into_string().unwrap()
        };
        for (refused, said) in [
            (of(3, 0, None), "blocks of 0 layers"),
            (of(3, usize::MAX, None), "a block has 1 to 65536"),
            (of(3, 2, None), "3 parts cannot be divided equally into 2 layers"),
            (of(0, 2, None), "0 parts cannot be divided"),
            (of(3, 2, Some(&[1, 1])), "the layers have 2 parts, a block has 3"),
            (of(3, 2, Some(&[3, 0])), "layer 1 has 0 parts, and 0 of the 3"),
            (of(3, 2, Some(&[0, 3])), "layer 0 has 0 parts, and 3 of the 3"),
            (of(3, 2, Some(&[1, 3])), "layer 1 has 3 parts, and 2 of the 3"),
            (of(3, 2, Some(&[1, usize::MAX])), "layer 1 has 18446744073709551615 parts"),
        ] {
            let message = message(refused);
            assert!(message.contains(said), "not \"{said}\": {message}");
        }
        // SAFETY: null is refused.
        let refused = unsafe { Division::of(3, Some(std::ptr::null())) };
        assert!(message(refused).contains("the layers: a null pointer"));
        assert!(check_layer(1, 2).is_ok());
        assert!(check_layer(2, 2).is_err() && check_layer(usize::MAX, 2).is_err());
    }
}
