//! A map from lines that can also be walked and drawn from in an order that follows from its
//! history alone: a run of the simulator must not depend on how a hash table is laid out.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::Random;
use crate::units::LineOffset;

/// Hashes one offset by multiplication: line maps are asked at every simulated access.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::verify) struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Lines as keys of a hash map, cheap to ask.
pub(in crate::verify) type LineHash = BuildHasherDefault<LineHasher>;

/// See the module.
#[derive(Clone, Debug)]
pub(in crate::verify) struct LineMap<V> {
    places: HashMap<LineOffset, usize, LineHash>,
    entries: Vec<(LineOffset, V)>,
}

impl<V> Default for LineMap<V> {
    fn default() -> Self {
        Self { places: HashMap::default(), entries: Vec::new() }
    }
}

impl<V> LineMap<V> {
    pub(in crate::verify) fn contains(&self, line: LineOffset) -> bool {
        self.places.contains_key(&line)
    }

    pub(in crate::verify) fn get(&self, line: LineOffset) -> Option<&V> {
        self.places.get(&line).map(|place| &self.entries[*place].1)
    }

    pub(in crate::verify) fn get_mut(&mut self, line: LineOffset) -> Option<&mut V> {
        self.places.get(&line).map(|place| &mut self.entries[*place].1)
    }

    /// The value of `line`, made by `make` when there is none.
    pub(in crate::verify) fn get_or_insert_with(
        &mut self,
        line: LineOffset,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let place = *self.places.entry(line).or_insert_with(|| {
            self.entries.push((line, make()));
            self.entries.len() - 1
        });
        &mut self.entries[place].1
    }

    pub(in crate::verify) fn remove(&mut self, line: LineOffset) -> Option<V> {
        let place = self.places.remove(&line)?;
        let (_, value) = self.entries.swap_remove(place);
        if let Some((moved, _)) = self.entries.get(place) {
            self.places.insert(*moved, place);
        }
        Some(value)
    }

    /// A line drawn evenly.
    pub(in crate::verify) fn pick(&self, random: &mut Random) -> Option<LineOffset> {
        random.index(self.entries.len()).map(|place| self.entries[place].0)
    }

    /// Removes and returns everything.
    pub(in crate::verify) fn take(&mut self) -> Vec<(LineOffset, V)> {
        self.places.clear();
        std::mem::take(&mut self.entries)
    }

    pub(in crate::verify) fn lines(&self) -> impl Iterator<Item = LineOffset> {
        self.entries.iter().map(|(line, _)| *line)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn agrees_with_a_map_of_the_standard_library() {
        let (mut random, mut tested, mut model) =
            (Random::new(3), LineMap::default(), BTreeMap::new());
        for step in 0..5000_u64 {
            let line = LineOffset::new(random.below(40) * 64).unwrap();
            if random.one_in(2) {
                assert_eq!(tested.remove(line), model.remove(&line));
            } else {
                *tested.get_or_insert_with(line, || 0) = step;
                model.insert(line, step);
            }
            assert_eq!(tested.get(line), model.get(&line));
            assert_eq!(tested.contains(line), model.contains_key(&line));
            assert!(tested.pick(&mut random).is_none_or(|picked| model.contains_key(&picked)));
        }
        let mut lines: Vec<_> = tested.lines().collect();
        lines.sort();
        assert_eq!(lines, model.keys().copied().collect::<Vec<_>>());
    }
}
