//! Which blocks are worth a write.

use std::fmt;
use std::str::FromStr;

use super::recent_keys::RecentKeys;
use super::sketch::Sketch;

/// A rule by which blocks are put on a drive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AdmissionKind {
    /// Every block.
    All,
    /// A block that was seen twice: published and found again, or published again. The default,
    /// because it has the most hits for the bytes that it writes.
    #[default]
    SecondTouch,
    /// Every block while nothing has left the drive. Then a block that was seen more often than the
    /// blocks that left last.
    Frequency,
}

impl AdmissionKind {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::All, Self::SecondTouch, Self::Frequency];

    /// Its name: `all`, `second-touch` or `frequency`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::SecondTouch => "second-touch",
            Self::Frequency => "frequency",
        }
    }
}

impl fmt::Display for AdmissionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no rule of this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no admission \"{0}\"; there are all, second-touch and frequency")]
pub struct UnknownAdmission(pub String);

impl FromStr for AdmissionKind {
    type Err = UnknownAdmission;

    fn from_str(name: &str) -> Result<Self, UnknownAdmission> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownAdmission(name.to_owned()))
    }
}

/// Keys that are remembered for each block that the drive has room for.
const REMEMBERED: usize = 2;
/// Blocks that left, over which their counts are averaged.
const AVERAGED: u64 = 64;

/// Decides by what it has seen. Blocks are known to it by uniform bits
/// ([`PolicyKey`](super::PolicyKey)).
///
/// Memory: for each of twice the blocks of the drive 6 bytes with
/// [`SecondTouch`](AdmissionKind::SecondTouch) and 8 bytes with
/// [`Frequency`](AdmissionKind::Frequency), and nothing with [`All`](AdmissionKind::All).
#[derive(Debug)]
pub struct Admission {
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    All,
    SecondTouch(RecentKeys),
    Frequency {
        counts: Sketch,
        /// How often the blocks were seen that left last: the sum over so many of them.
        left: u64,
    },
}

impl Admission {
    /// A rule for a drive with room for `drive_blocks` blocks.
    #[must_use]
    pub fn new(kind: AdmissionKind, drive_blocks: usize) -> Self {
        let keys = drive_blocks.saturating_mul(REMEMBERED);
        let rule = match kind {
            AdmissionKind::All => Rule::All,
            AdmissionKind::SecondTouch => Rule::SecondTouch(RecentKeys::new(keys)),
            AdmissionKind::Frequency => Rule::Frequency { counts: Sketch::new(keys), left: 0 },
        };
        Self { rule }
    }

    /// A block was published, or found by a lookup.
    pub fn seen(&mut self, bits: u64) {
        match &mut self.rule {
            Rule::All => {}
            Rule::SecondTouch(keys) => keys.see(bits),
            Rule::Frequency { counts, .. } => counts.see(bits),
        }
    }

    /// A block was found in the pool by a look at all of its blocks, which is no use of it.
    pub fn found(&mut self, bits: u64) {
        let is_known = match &self.rule {
            Rule::All => true,
            Rule::SecondTouch(keys) => keys.was_seen(bits),
            Rule::Frequency { counts, .. } => counts.count(bits) > 0,
        };
        if !is_known {
            self.seen(bits);
        }
    }

    /// A block left the drive to make room.
    pub fn left(&mut self, bits: u64) {
        if let Rule::Frequency { counts, left } = &mut self.rule {
            // The first one stands for all before it.
            let before = if *left == 0 { AVERAGED } else { *left };
            *left = before - before / AVERAGED + u64::from(counts.count(bits));
        }
    }

    /// Whether a block is to be put on the drive.
    #[must_use]
    pub fn admits(&self, bits: u64) -> bool {
        match &self.rule {
            Rule::All => true,
            Rule::SecondTouch(keys) => keys.was_seen_again(bits),
            Rule::Frequency { counts, left } => u64::from(counts.count(bits)) * AVERAGED > *left,
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.rule {
            Rule::All => 0,
            Rule::SecondTouch(keys) => keys.memory_bytes(),
            Rule::Frequency { counts, .. } => counts.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PolicyKey;
    use super::*;

    fn admission(kind: AdmissionKind) -> Admission {
        Admission::new(kind, 1000)
    }

    #[test]
    fn names_are_read_back() {
        for kind in AdmissionKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "some".parse::<AdmissionKind>().unwrap_err().to_string();
        assert!(error.contains("there are all, second-touch and frequency"), "{error}");
    }

    #[test]
    fn a_second_touch_admits() {
        let (mut all, mut second) =
            (admission(AdmissionKind::All), admission(AdmissionKind::SecondTouch));
        for number in [1_u32, 2, 1] {
            all.seen(number.bits());
            second.seen(number.bits());
        }
        let admitted = |by: &Admission| [1_u32, 2, 3].map(|number| by.admits(number.bits()));
        assert_eq!((admitted(&all), admitted(&second)), ([true; 3], [true, false, false]));
    }

    #[test]
    fn frequency_admits_what_was_seen_more_often_than_what_left() {
        let mut frequency = admission(AdmissionKind::Frequency);
        for (number, times) in [(1_u32, 1), (2, 2), (3, 4)] {
            (0..times).for_each(|_| frequency.seen(number.bits()));
        }
        let admitted = |by: &Admission| [1_u32, 2, 3].map(|number| by.admits(number.bits()));
        assert_eq!(admitted(&frequency), [true; 3]);
        frequency.left(1_u32.bits());
        assert_eq!(admitted(&frequency), [false, true, true]);
        (0..1000).for_each(|_| frequency.left(2_u32.bits()));
        assert_eq!(admitted(&frequency), [false, false, true]);
        (0..1000).for_each(|_| frequency.left(1_u32.bits()));
        assert_eq!(admitted(&frequency), [false, true, true]);
    }

    #[test]
    fn at_most_16_bytes_a_block_of_the_drive_are_remembered() {
        for kind in AdmissionKind::ALL {
            let bytes = Admission::new(kind, 1 << 20).memory_bytes();
            assert!(bytes <= 16 << 20, "{kind}: {bytes}");
        }
    }
}
