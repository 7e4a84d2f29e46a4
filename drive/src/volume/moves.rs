//! Which blocks came to a folder and which left it since it was opened: the accounts behind the
//! metrics. What came less what left is what is there ([`Volume::check`](super::Volume::check)).

/// Blocks, and bytes of their payload as it was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// How many blocks.
    pub blocks: u64,
    /// Bytes of their payload.
    pub bytes: u64,
}

impl Flow {
    pub(super) fn add(&mut self, bytes: u32) {
        self.blocks += 1;
        self.bytes += u64::from(bytes);
    }
}

/// Blocks that came to a folder and left it, since it was opened. A block that compaction moves does
/// neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Blocks that were in the folder when it was opened: they count as soon as their table is read.
    pub found: Flow,
    /// Blocks that were written, and made durable.
    pub written: Flow,
    /// Blocks that were removed.
    pub removed: Flow,
    /// Blocks that were found damaged, and so removed.
    pub damaged: Flow,
}

/// How a block comes to the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It was there when the folder was opened.
    Found,
    /// It was written.
    Written,
    /// It was there at another place.
    Moved,
}

/// Why a block leaves the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// It is to leave.
    Removed,
    /// Its bytes are not those that were written.
    Damaged,
}

impl Moves {
    /// What is there.
    #[must_use]
    pub fn resident(&self) -> Flow {
        let sum = |part: fn(&Flow) -> u64| {
            let came = part(&self.found) + part(&self.written);
            came.saturating_sub(part(&self.removed) + part(&self.damaged))
        };
        Flow { blocks: sum(|flow| flow.blocks), bytes: sum(|flow| flow.bytes) }
    }

    pub(super) fn came(&mut self, how: Came, bytes: u32) {
        match how {
            Came::Found => self.found.add(bytes),
            Came::Written => self.written.add(bytes),
            Came::Moved => {}
        }
    }

    pub(super) fn left(&mut self, why: Left, bytes: u32) {
        match why {
            Left::Removed => self.removed.add(bytes),
            Left::Damaged => self.damaged.add(bytes),
        }
    }
}
