//! What the rules of the memory cost a block, whatever program follows them: the copy, and the lines
//! that are published and refreshed around it, one after the other. No lock, no checksum, no index.
//! On a file in memory, where a fence makes a publish complete and a payload needs no refresh.

use std::error::Error;

use cxl_shm::fabric::{Fabric, MappedFabric, Mapping, ReadBack, publish_all};
use cxl_shm::units::{LINE_BYTES, LineOffset, LineRange};

use crate::{Batch, memcpy_out, stream_in};

/// Lines of a metadata area, each kind on its own pages as in a region.
const LINES: u64 = 1 << 16;
/// Entries of a publication log in a line.
const ENTRIES: u64 = 2;

/// The metadata of one node in memory of its own.
#[derive(Debug)]
pub struct Floor {
    fabric: MappedFabric,
    blocks: u64,
}

impl Floor {
    /// Allocates and touches the metadata.
    ///
    /// # Errors
    /// When `/dev/shm` has no room for 12 MiB.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let bytes = 3 * LINES * LINE_BYTES;
        let file = tempfile::tempfile_in("/dev/shm")?;
        file.set_len(bytes)?;
        // As sessions use a file in memory.
        let fabric = MappedFabric::new(Mapping::shared(&file, bytes)?)?;
        let fabric = fabric.with_read_back(ReadBack::NotNeeded);
        let floor = Self { fabric, blocks: 0 };
        (0..3 * LINES).for_each(|line| floor.write(floor.at(line)));
        Ok(floor)
    }

    /// A publish: a peer's log head is refreshed, the descriptor published as being written
    /// (WRITE-B1), the payload copied (WRITE-B2), the descriptor and a log entry published, then
    /// the head of the log (WRITE-B3).
    pub fn put(&mut self, batch: &mut Batch<'_>) {
        let [peer_head, descriptor, entry, head] = self.lines();
        self.fabric.refresh(LineRange::one(peer_head));
        self.read(peer_head);
        self.write(descriptor);
        self.fabric.publish(LineRange::one(descriptor));
        for line in [descriptor, entry, head] {
            self.fabric.prefetch_owned(line);
        }
        stream_in(batch);
        self.fabric.fence();
        self.write(descriptor);
        self.write(entry);
        publish_all(&self.fabric, [descriptor, entry].map(LineRange::one));
        self.write(head);
        self.fabric.publish(LineRange::one(head));
        self.blocks += 1;
    }

    /// A lookup and a fetch: a peer's log head and its new entry are refreshed and read, then the
    /// descriptor, the payload is copied, and the descriptor is refreshed and read again.
    pub fn get(&mut self, batch: &mut Batch<'_>) {
        let [peer_head, descriptor, entry, _] = self.lines();
        self.fabric.refresh(LineRange::one(peer_head));
        self.read(peer_head);
        self.fabric.refresh(LineRange::one(entry));
        self.read(entry);
        self.fabric.refresh(LineRange::one(descriptor));
        self.read(descriptor);
        memcpy_out(batch);
        self.fabric.refresh(LineRange::one(descriptor));
        self.read(descriptor);
        self.blocks += 1;
    }

    fn lines(&self) -> [LineOffset; 4] {
        let block = self.blocks % LINES;
        let entry = LINES + block / ENTRIES;
        [2 * LINES + 1, block, entry, 2 * LINES].map(|line| self.at(line))
    }

    fn at(&self, line: u64) -> LineOffset {
        LineOffset::new(line * LINE_BYTES).expect("a line's offset is a multiple of its length")
    }

    fn write(&self, line: LineOffset) {
        self.fabric.write_line(line, &[self.blocks; 8]);
    }

    fn read(&self, line: LineOffset) {
        std::hint::black_box(self.fabric.read_line(line));
    }
}
