//! The checksum of a payload.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli, as in iSCSI) of the bytes of a payload in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Checksum(pub u32);

impl Checksum {
    /// The checksum of `parts`, one after another.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut running = RunningChecksum::new();
        parts.iter().for_each(|part| running.add(part));
        running.finish()
    }
}

/// A checksum of bytes that come one block at a time: the state of the CRC after them.
#[derive(Debug)]
pub(super) struct RunningChecksum(u32);

impl RunningChecksum {
    pub(super) fn new() -> Self {
        Self(state_of(&Digest::new(CrcAlgorithm::Crc32Iscsi)))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut digest = self.digest();
        digest.update(bytes);
        self.0 = state_of(&digest);
    }

    /// Adds bytes by `compute`, which makes the state after them of the state before them.
    #[cfg(any(target_arch = "x86_64", feature = "cuda"))]
    pub(super) fn add_by(&mut self, compute: impl FnOnce(u32) -> u32) {
        self.0 = compute(self.0);
    }

    pub(super) fn finish(self) -> Checksum {
        Checksum(u32::try_from(self.digest().finalize()).expect("a CRC-32 has 32 bits"))
    }

    fn digest(&self) -> Digest {
        Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, self.0.into())
    }
}

/// What a number of zeros makes of the state of a CRC. By it checksums of parts are put together: a CRC
/// is linear, so the state after some bytes is the shifted state before them, XOR the CRC of the bytes
/// from the state 0 on.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub(super) struct Shift {
    /// Of each bit of the state.
    of_bits: [u32; 32],
}

#[cfg(feature = "cuda")]
impl Shift {
    /// Of so many bytes. Takes as long as to read that many, 32 times.
    pub(super) fn over(bytes: u64) -> Self {
        const ZEROS: [u8; 4096] = [0; 4096];
        let over = |state: u32| {
            let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state.into());
            let mut left = bytes;
            while left > 0 {
                let now = left.min(ZEROS.len() as u64);
                digest.update(&ZEROS[..usize::try_from(now).expect("it is short")]);
                left -= now;
            }
            state_of(&digest)
        };
        Self { of_bits: std::array::from_fn(|bit| over(1 << bit)) }
    }

    /// The state after the zeros.
    pub(super) fn of(&self, state: u32) -> u32 {
        let bits = self.of_bits.iter().enumerate();
        bits.fold(0, |sum, (bit, of_bit)| sum ^ (of_bit & (state >> bit & 1).wrapping_neg()))
    }
}

fn state_of(digest: &Digest) -> u32 {
    u32::try_from(digest.get_state()).expect("a CRC-32 has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnoli() {
        // The check value of CRC-32/ISCSI, and RFC 3720 B.4: 32 bytes of zeros.
        assert_eq!(Checksum::of(&[b"1234", b"", b"56789"]), Checksum(0xe306_9283));
        assert_eq!(Checksum::of(&[&[0; 32]]), Checksum(0x8a91_36aa));
        assert_eq!(Checksum::of(&[]), Checksum(0));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn checksums_of_parts_are_put_together() {
        let bytes: Vec<u8> = (0..20_000_u32).flat_map(|word| (word * 31).to_le_bytes()).collect();
        for cuts in [vec![0], vec![1, 4095, 4096, 4097], vec![64, 8192, 12_288], vec![79_999]] {
            let mut running = RunningChecksum::new();
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let mut start = 0;
            for end in ends {
                let part = &bytes[start..end];
                let mut of_part = RunningChecksum(0);
                of_part.add(part);
                running.add_by(|state| Shift::over(part.len() as u64).of(state) ^ of_part.0);
                start = end;
            }
            assert_eq!(running.finish(), Checksum::of(&[&bytes]), "{cuts:?}");
        }
    }
}
