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
    #[cfg(target_arch = "x86_64")]
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
}
