//! How often keys were seen lately, about: a count-min sketch of 4-bit counters, 8 bytes a key.
//!
//! A key has four counters in one line of 64 bytes. The least of them is the estimate, and only the
//! least are incremented. After ten times as many sightings as keys all counters are halved, so
//! that what was popular once is forgotten.

const LINE_BYTES: usize = 64;
/// Counters in a line.
const LINE: u64 = 128;
/// Bytes of counters for a key.
const KEY_BYTES: usize = 8;
/// The highest count.
pub(super) const COUNT_MAX: u8 = 15;

#[derive(Debug)]
pub(super) struct Sketch {
    lines: Box<[[u8; LINE_BYTES]]>,
    /// Sightings since the counters were halved, and after how many they are.
    seen: u64,
    period: u64,
}

impl Sketch {
    /// Counts for about `keys` keys at a time.
    pub(super) fn new(keys: usize) -> Self {
        let lines = (keys * KEY_BYTES).div_ceil(LINE_BYTES).max(1);
        let period = (keys as u64 * 10).max(LINE);
        Self { lines: vec![[0; LINE_BYTES]; lines].into(), seen: 0, period }
    }

    /// The line of a key, and its counters there.
    fn place(&self, bits: u64) -> (usize, [usize; 4]) {
        let line = (u128::from(bits) * self.lines.len() as u128) >> 64;
        // The bits that choose the line are the high ones.
        let mixed = bits.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let counter = |at: u64| usize::try_from(mixed >> (36 + 7 * at) & (LINE - 1)).unwrap_or(0);
        (usize::try_from(line).unwrap_or(0), [0, 1, 2, 3].map(counter))
    }

    pub(super) fn see(&mut self, bits: u64) {
        let (line, counters) = self.place(bits);
        let least = self.count(bits);
        let line = &mut self.lines[line];
        if least < COUNT_MAX {
            for counter in counters {
                if get(line, counter) == least {
                    line[counter / 2] += if counter % 2 == 0 { 1 } else { 16 };
                }
            }
        }
        self.seen += 1;
        if self.seen >= self.period {
            self.seen /= 2;
            self.lines.iter_mut().flatten().for_each(|two| *two = *two >> 1 & 0x77);
        }
    }

    /// How often a key was seen: at least so often as it was since the counters were halved, up to 15.
    pub(super) fn count(&self, bits: u64) -> u8 {
        let (line, counters) = self.place(bits);
        let line = &self.lines[line];
        counters.into_iter().map(|counter| get(line, counter)).min().unwrap_or(0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

fn get(line: &[u8; LINE_BYTES], counter: usize) -> u8 {
    line[counter / 2] >> (4 * (counter % 2)) & COUNT_MAX
}

#[cfg(test)]
mod tests {
    use super::super::PolicyKey;
    use super::*;

    #[test]
    fn counts_are_never_too_low_and_seldom_too_high() {
        let mut sketch = Sketch::new(10_000);
        assert!(sketch.memory_bytes() <= 8 * 10_000 + LINE_BYTES);
        for number in 0..10_000_u32 {
            (0..=number % 4).for_each(|_| sketch.see(number.bits()));
        }
        let mut too_high = 0;
        for number in 0..10_000_u32 {
            let (count, seen) = (u32::from(sketch.count(number.bits())), number % 4 + 1);
            assert!(count >= seen);
            too_high += u32::from(count > seen);
        }
        assert!(too_high < 500, "{too_high}");
    }

    #[test]
    fn counts_end_at_15_and_are_halved_in_time() {
        let mut sketch = Sketch::new(100);
        (0..900).for_each(|_| sketch.see(7_u32.bits()));
        assert_eq!(sketch.count(7_u32.bits()), COUNT_MAX);
        (0..100).for_each(|_| sketch.see(8_u32.bits()));
        assert_eq!([7_u32, 8].map(|number| sketch.count(number.bits())), [7, 7]);
    }
}
