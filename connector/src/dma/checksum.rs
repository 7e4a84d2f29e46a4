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

/// A checksum of bytes that come one block at a time.
#[derive(Debug)]
pub(super) struct RunningChecksum(Digest);

impl RunningChecksum {
    pub(super) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Checksum {
        Checksum(u32::try_from(self.0.finalize()).expect("a CRC-32 has 32 bits"))
    }
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
