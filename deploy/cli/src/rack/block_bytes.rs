//! The bytes of a block: they follow from its hash, so that each process that fetches the block can
//! check them.

use kv_cache::BlockHash;

/// The hash of block `number` of a trace.
pub(crate) fn hash(number: u32) -> BlockHash {
    let mut words = Words(u64::from(number));
    let mut bytes = [0; 32];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&words.next().to_le_bytes());
    }
    BlockHash::new(bytes)
}

/// Fills `bytes` with those of the block.
pub(crate) fn fill(hash: &BlockHash, bytes: &mut [u8]) {
    let mut words = Words::of(hash);
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&words.next().to_le_bytes()[..part.len()]);
    }
}

/// Whether `bytes` are those of the block.
pub(crate) fn are_of(hash: &BlockHash, bytes: &[u8]) -> bool {
    let mut words = Words::of(hash);
    bytes.chunks(8).all(|part| *part == words.next().to_le_bytes()[..part.len()])
}

/// SplitMix64.
struct Words(u64);

impl Words {
    fn of(hash: &BlockHash) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_bytes_of_its_own_and_each_of_them_counts() {
        let (mut first, mut second) = ([0; 99], [0; 99]);
        fill(&hash(0), &mut first);
        fill(&hash(1), &mut second);
        assert!(are_of(&hash(0), &first) && are_of(&hash(1), &second));
        assert!(!are_of(&hash(0), &second) && !are_of(&hash(1), &first));
        for at in 0..first.len() {
            let mut damaged = first;
            damaged[at] ^= 1;
            assert!(!are_of(&hash(0), &damaged), "byte {at}");
        }
    }
}
