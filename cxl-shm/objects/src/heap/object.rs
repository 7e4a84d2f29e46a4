//! Objects, and the bytes in them.
//!
//! The allocating host is the one that writes an object (MEM-M1), until it hands it over: it
//! publishes what it wrote, then tells another host through a named root, under a lock between
//! hosts, or by any message that comes after the publish. The other host then takes it over.

use std::fmt;

use cxl_shm::fabric::{Fabric, OwnedArea, PeerArea};
use cxl_shm::units::{
    Extent, Incarnation, LINE_BYTES, LineOffset, LineRange, NodeId, WORD_BYTES, WordOffset,
};

/// Where an object starts, in bytes from the start of the region: the same on every host, at
/// whatever address the region is mapped. What to store in an object to refer to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedOffset(u64);

impl SharedOffset {
    /// The offset `bytes`; `None` when no object can start there: objects start on lines.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_multiple_of(LINE_BYTES) { Some(Self(bytes)) } else { None }
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SharedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SharedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedOffset({:#x})", self.0)
    }
}

/// An object that this host may write. Not freed when dropped.
///
/// Its bytes are whatever was there before: [`Self::zero`] makes them zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    extent: Extent,
    life: Option<(NodeId, Incarnation)>,
}

impl Object {
    /// The object at a checked place. Only for code that argues why this host owns it (MEM-M1).
    pub(super) fn new(extent: Extent, life: Option<(NodeId, Incarnation)>) -> Self {
        Self { extent, life }
    }

    /// Where it starts.
    #[must_use]
    pub fn offset(&self) -> SharedOffset {
        SharedOffset(self.extent.offset())
    }

    /// The bytes that it has room for, a multiple of 64: at least what was asked for.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Its lines, for typed lines and words.
    #[must_use]
    pub fn area(&self) -> OwnedArea {
        OwnedArea::new(LineRange::covering(self.extent))
    }

    /// As other hosts see it.
    #[must_use]
    pub fn peer(&self) -> PeerObject {
        PeerObject { extent: self.extent, life: self.life }
    }

    /// Writes `bytes` from byte `at` of the object on, and publishes the lines they are in. After
    /// return every host that reads them fresh sees them; meanwhile it may see any mixture.
    /// Returns whether they fit; nothing is written when they do not.
    #[must_use = "bytes that do not fit are not written"]
    pub fn write(&self, fabric: &impl Fabric, at: u64, bytes: &[u8]) -> bool {
        let Some(part) = self.extent.part(at, bytes.len() as u64) else { return false };
        let mut at = part.offset();
        let mut left = bytes;
        while !left.is_empty() {
            let word = word_at(at);
            let from = in_word(at);
            let count = left.len().min(size_of::<u64>() - from);
            let mut eight = fabric.load(word).to_le_bytes();
            eight[from..from + count].copy_from_slice(&left[..count]);
            fabric.store(word, u64::from_le_bytes(eight));
            at += count as u64;
            left = &left[count..];
        }
        fabric.publish(LineRange::covering(part));
        true
    }

    /// Makes all of it zero, and publishes that.
    pub fn zero(&self, fabric: &impl Fabric) {
        let lines = LineRange::covering(self.extent);
        for line in lines.iter() {
            fabric.write_line(line, &[0; 8]);
        }
        fabric.publish(lines);
    }
}

/// An object that this host may read, as it was when it was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerObject {
    extent: Extent,
    life: Option<(NodeId, Incarnation)>,
}

impl PeerObject {
    pub(crate) fn new(extent: Extent, life: Option<(NodeId, Incarnation)>) -> Self {
        Self { extent, life }
    }

    /// The node whose heap it was in when it was looked up, and in which of its incarnations;
    /// `None` while that heap waited to be rebuilt after a death. A program that tells another host
    /// of an object tells its own incarnation too: when they differ, the object is gone
    /// (OBJECT-O5).
    #[must_use]
    pub fn life(&self) -> Option<(NodeId, Incarnation)> {
        self.life
    }

    /// Where it starts.
    #[must_use]
    pub fn offset(&self) -> SharedOffset {
        SharedOffset(self.extent.offset())
    }

    /// The bytes that it has room for.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Its lines, for typed lines and words.
    #[must_use]
    pub fn area(&self) -> PeerArea {
        PeerArea::new(LineRange::covering(self.extent))
    }

    /// Reads `bytes` from byte `at` of the object on: at least what was published before the call
    /// (MEM-M3). Returns whether they lie inside; nothing is read when they do not.
    #[must_use = "bytes outside the object are not read"]
    pub fn read(&self, fabric: &impl Fabric, at: u64, bytes: &mut [u8]) -> bool {
        let Some(part) = self.extent.part(at, bytes.len() as u64) else { return false };
        fabric.refresh(LineRange::covering(part));
        let mut at = part.offset();
        let mut left = bytes;
        while !left.is_empty() {
            let from = in_word(at);
            let count = left.len().min(size_of::<u64>() - from);
            let eight = fabric.load(word_at(at)).to_le_bytes();
            left[..count].copy_from_slice(&eight[from..from + count]);
            at += count as u64;
            left = &mut left[count..];
        }
        true
    }
}

fn word_at(at: u64) -> WordOffset {
    let line = LineOffset::new(at - at % LINE_BYTES);
    let word = line.and_then(|line| line.word(usize::try_from(at % LINE_BYTES / WORD_BYTES).ok()?));
    word.expect("an offset rounded down to its line")
}

fn in_word(at: u64) -> usize {
    usize::try_from(at % WORD_BYTES).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxl_shm::verify::simulated::SimulatedRack;

    #[test]
    fn another_host_reads_the_bytes_that_were_written() {
        let rack = SimulatedRack::sticky(2, 4096);
        let object = Object::new(Extent::new(64, 192).unwrap(), None);
        let (writer, reader) = (rack.host(0), rack.host(1));
        let mut seen = [0xff; 100];
        assert!(object.peer().read(&reader, 5, &mut seen));
        assert_eq!(seen, [0; 100]);
        let bytes: Vec<u8> = (0..100).collect();
        assert!(object.write(&writer, 5, &bytes));
        assert!(object.peer().read(&reader, 5, &mut seen));
        assert_eq!(seen[..], bytes);
        object.zero(&writer);
        assert!(object.peer().read(&reader, 5, &mut seen));
        assert_eq!(seen, [0; 100]);
        assert!(!object.write(&writer, 150, &bytes), "beyond its end");
        assert!(!object.peer().read(&reader, u64::MAX, &mut seen));
    }
}
