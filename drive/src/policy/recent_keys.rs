//! Keys that were seen lately, and which of them more than once: 6 bytes a key.
//!
//! The keys lie in lines of 16, by their bits. A line has its keys in the order in which they were
//! seen, and forgets the one that was seen longest ago. Two keys of a line that agree in 31 more bits
//! are taken for one: one pair in 2^27 lines. Lines have room for half as many keys more than are to
//! be remembered, because some lines get more keys than others.

const LINE: usize = 16;
/// Says that the key was seen again.
const AGAIN: u32 = 1;

#[derive(Debug)]
pub(super) struct RecentKeys {
    lines: Box<[[u32; LINE]]>,
}

impl RecentKeys {
    /// Remembers about `keys` keys.
    pub(super) fn new(keys: usize) -> Self {
        let room = keys + keys / 2;
        Self { lines: vec![[0; LINE]; room.div_ceil(LINE).max(1)].into() }
    }

    /// The line of a key, and the word for the key in that line. No word is 0.
    fn place(&self, bits: u64) -> (usize, u32) {
        let line = (u128::from(bits) * self.lines.len() as u128) >> 64;
        let low = u32::try_from(bits & 0xffff_ffff).unwrap_or(0) & !AGAIN;
        (usize::try_from(line).unwrap_or(0), low.max(2))
    }

    /// A key was seen.
    pub(super) fn see(&mut self, bits: u64) {
        let (line, word) = self.place(bits);
        let line = &mut self.lines[line];
        let found = line.iter().position(|other| other & !AGAIN == word);
        let again = if found.is_some() { AGAIN } else { 0 };
        let place = found.unwrap_or(LINE - 1);
        line.copy_within(..place, 1);
        line[0] = word | again;
    }

    /// Whether a key was seen, as far as is remembered.
    pub(super) fn was_seen(&self, bits: u64) -> bool {
        let (line, word) = self.place(bits);
        self.lines[line].iter().any(|other| other & !AGAIN == word)
    }

    /// Whether a key was seen more than once, as far as is remembered.
    pub(super) fn was_seen_again(&self, bits: u64) -> bool {
        let (line, word) = self.place(bits);
        self.lines[line].contains(&(word | AGAIN))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PolicyKey;
    use super::*;

    fn bits(number: u32) -> u64 {
        number.bits()
    }

    #[test]
    fn the_second_time_is_known_from_the_first() {
        let mut keys = RecentKeys::new(1000);
        (0..500).for_each(|number| keys.see(bits(number)));
        assert!((0..500).all(|number| !keys.was_seen_again(bits(number))));
        (0..500).step_by(3).for_each(|number| keys.see(bits(number)));
        assert!((0..500).all(|number| keys.was_seen_again(bits(number)) == (number % 3 == 0)));
        keys.see(bits(3));
        assert!(keys.was_seen_again(bits(3)));
    }

    #[test]
    fn what_was_seen_longest_ago_is_forgotten() {
        // One line, so that the order is that of the line.
        let mut keys = RecentKeys::new(LINE / 2);
        (0..16).for_each(|number| keys.see(bits(number)));
        keys.see(bits(0));
        keys.see(bits(16));
        keys.see(bits(1));
        keys.see(bits(5));
        assert!(keys.was_seen_again(bits(0)) && keys.was_seen_again(bits(5)));
        assert!(!keys.was_seen_again(bits(1)), "the key 16 took its place");
    }

    #[test]
    fn most_of_the_promised_keys_are_remembered_in_6_bytes_each() {
        let mut keys = RecentKeys::new(100_000);
        assert!(keys.memory_bytes() <= 6 * 100_000 + 64);
        (0..100_000).for_each(|number| keys.see(bits(number)));
        (0..100_000).for_each(|number| keys.see(bits(number)));
        let known = (0..100_000).filter(|number| keys.was_seen_again(bits(*number))).count();
        assert!(known > 85_000, "{known}");
    }
}
