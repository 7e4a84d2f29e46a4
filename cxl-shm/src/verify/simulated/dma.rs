//! DMA engines of a simulated host: payload that no processor touches (MEM-M9).

use super::device::{bytes_of, splice};
use super::trace::EventKind;
use super::{CacheMode, SimulatedHost};
use crate::units::{Extent, LINE_BYTES, LineOffset, LineRange};

/// What a transfer has to do with the caches of the host whose engine makes it. A property of the
/// platform, not a choice of the program: protocols have to be right under both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaCache {
    /// Writes go to the device, reads come from it. Within the host the engine is coherent: a
    /// write drops the host's cached copy, a read first writes a dirty copy back.
    Bypass,
    /// Writes land dirty in the host's cache (Intel DDIO); reads are answered by the host's
    /// cached copy when there is one, however old.
    Allocate,
}

impl SimulatedHost {
    /// Writes `bytes` to `extent` by DMA, line by line; others run between lines, and adversarial
    /// engines write the lines in any order. After return the engine is done; whether others see
    /// the bytes depends on `cache` and on what the program flushes.
    ///
    /// # Panics
    /// When `bytes` is not as long as the extent, or the extent is outside the memory.
    pub fn dma_write(&self, extent: Extent, bytes: &[u8], cache: DmaCache) {
        assert_eq!(bytes.len() as u64, extent.bytes(), "as many bytes as the extent has");
        for Piece { line, start, range } in self.pieces(extent) {
            let Some(mut machine) = self.rack.enter(self.host, Some(line)) else {
                return;
            };
            machine.note(self.host, EventKind::DmaWrite, line.bytes(), range.len() as u64);
            if machine.is_engine_cut_off() {
                splice(machine.replacement(line), start, &bytes[range]);
                continue;
            }
            machine.check_single_writer(self.host, line);
            let (host, part) = (self.host, &bytes[range]);
            let machine = &mut *machine;
            match cache {
                DmaCache::Bypass => {
                    machine.hosts[host].dma_write_bypass(&mut machine.device, line, start, part);
                }
                DmaCache::Allocate => {
                    machine.hosts[host].dma_write_allocate(&mut machine.device, line, start, part);
                }
            }
        }
    }

    /// Reads `extent` into `bytes` by DMA, line by line; others run between lines, so the bytes
    /// may be of several generations.
    ///
    /// # Panics
    /// When `bytes` is not as long as the extent, or the extent is outside the memory.
    pub fn dma_read(&self, extent: Extent, bytes: &mut [u8], cache: DmaCache) {
        assert_eq!(bytes.len() as u64, extent.bytes(), "as many bytes as the extent has");
        for Piece { line, start, range } in self.pieces(extent) {
            let Some(mut machine) = self.rack.enter(self.host, Some(line)) else {
                return;
            };
            machine.note(self.host, EventKind::DmaRead, line.bytes(), range.len() as u64);
            let machine = &mut *machine;
            let found = if machine.is_engine_cut_off() {
                bytes_of(machine.replacement(line))
            } else {
                let host = &mut machine.hosts[self.host];
                match cache {
                    DmaCache::Bypass => host.dma_read_bypass(&mut machine.device, line),
                    DmaCache::Allocate => host.dma_read_snoop(&mut machine.device, line),
                }
            };
            let part = &found[start..start + range.len()];
            bytes[range].copy_from_slice(part);
        }
    }

    /// The lines of an extent in the order in which an engine moves them.
    fn pieces(&self, extent: Extent) -> Vec<Piece> {
        if extent.bytes() == 0 {
            return Vec::new();
        }
        let lines = LineRange::covering(extent);
        self.rack.check_lines(lines);
        let mut pieces: Vec<_> = lines.iter().map(|line| Piece::of(extent, line)).collect();
        if self.rack.settings().cache == CacheMode::Adversarial {
            let mut machine = self.rack.lock();
            for last in (1..pieces.len()).rev() {
                let other = machine.random.index(last + 1).unwrap_or(last);
                pieces.swap(last, other);
            }
        }
        pieces
    }
}

/// The part of an extent that lies in one line.
pub(super) struct Piece {
    pub(super) line: LineOffset,
    /// First byte in the line.
    pub(super) start: usize,
    /// Bytes of the transfer.
    pub(super) range: std::ops::Range<usize>,
}

impl Piece {
    pub(super) fn of(extent: Extent, line: LineOffset) -> Self {
        let first = line.bytes().max(extent.offset());
        let end = (line.bytes() + LINE_BYTES).min(extent.end());
        let in_memory =
            |bytes: u64| usize::try_from(bytes).expect("an offset into a slice that is in memory");
        let (from, to) = (in_memory(first - extent.offset()), in_memory(end - extent.offset()));
        Self { line, start: in_memory(first - line.bytes()), range: from..to }
    }
}
