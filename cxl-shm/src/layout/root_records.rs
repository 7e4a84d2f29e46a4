//! The records of a named root: a head, then three lines of name.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use super::ROOT_LINES;
use crate::fabric::Record;

/// Most bytes of a name.
pub const ROOT_NAME_BYTES_MAX: usize = 128;
const NAME_LINES: usize = 3;
const _: () = assert!(NAME_LINES as u64 + 1 == ROOT_LINES, "a head, and the name");
const NAME_LINE_BYTES: usize = 48;
const _: () = assert!(NAME_LINES * NAME_LINE_BYTES >= ROOT_NAME_BYTES_MAX, "every name fits");

/// Whether an entry of the table names something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootState {
    /// It did once.
    Free,
    /// It does.
    Live,
    /// It was destroyed; its object is to be freed by the host whose heap it is in.
    Retired,
}

/// First line of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RootHead {
    state: u32,
    kind: u32,
    name_bytes: u64,
    name_hash: u64,
    offset: u64,
    sequence: u64,
    reserved: [u64; 2],
}

impl Record for RootHead {
    const KIND: u32 = u32::from_le_bytes(*b"ROOT");
}

impl RootHead {
    /// An entry that names `offset`; `sequence` tells it from all that were in its place.
    #[must_use]
    pub fn live(name: &str, offset: u64, kind: u32, sequence: u64) -> Self {
        let (name_bytes, name_hash) = (name.len() as u64, root_name_hash(name));
        Self { state: 1, kind, name_bytes, name_hash, offset, sequence, reserved: [0; 2] }
    }

    /// The same entry in another state.
    #[must_use]
    pub fn with_state(&self, state: RootState) -> Self {
        let state = match state {
            RootState::Free => 0,
            RootState::Live => 1,
            RootState::Retired => 2,
        };
        Self { state, ..*self }
    }

    /// The same entry naming another object.
    #[must_use]
    pub fn with_offset(&self, offset: u64, kind: u32) -> Self {
        Self { offset, kind, ..*self }
    }

    /// Its state; `None` when it is none that this version knows.
    #[must_use]
    pub fn state(&self) -> Option<RootState> {
        match self.state {
            0 => Some(RootState::Free),
            1 => Some(RootState::Live),
            2 => Some(RootState::Retired),
            _ => None,
        }
    }

    /// Where the object starts; not checked.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What the object is to a sweep; not checked.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Which of the roots that were in this place it is: the lines of its name say the same.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Length of the name; not checked.
    #[must_use]
    pub fn name_bytes(&self) -> u64 {
        self.name_bytes
    }

    /// Whether this may be the head of `name`.
    #[must_use]
    pub fn may_be(&self, name: &str) -> bool {
        self.name_bytes == name.len() as u64 && self.name_hash == root_name_hash(name)
    }
}

/// FNV-1a over the bytes of a name.
#[must_use]
pub fn root_name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A line of a root's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RootName {
    bytes: [u8; NAME_LINE_BYTES],
    sequence: u64,
}

impl Record for RootName {
    const KIND: u32 = u32::from_le_bytes(*b"NAME");
}

impl RootName {
    /// The lines of `name`, whose bytes beyond [`ROOT_NAME_BYTES_MAX`] are cut off.
    #[must_use]
    pub fn lines(name: &str, sequence: u64) -> [Self; NAME_LINES] {
        let mut lines = [Self { bytes: [0; NAME_LINE_BYTES], sequence }; NAME_LINES];
        for (line, part) in lines.iter_mut().zip(name.as_bytes().chunks(NAME_LINE_BYTES)) {
            line.bytes[..part.len()].copy_from_slice(part);
        }
        lines
    }

    /// The name of a head, from its lines; `None` when they belong to another root, or do not
    /// hold a name.
    #[must_use]
    pub fn join(head: &RootHead, lines: &[Self; NAME_LINES]) -> Option<String> {
        let length = usize::try_from(head.name_bytes()).ok()?;
        let all = lines.iter().all(|line| line.sequence == head.sequence());
        if !all || length == 0 || length > ROOT_NAME_BYTES_MAX {
            return None;
        }
        let bytes: Vec<u8> = lines.iter().flat_map(|line| line.bytes).take(length).collect();
        String::from_utf8(bytes).ok()
    }
}

assert_eq_size!(RootHead, [u8; 56]);
assert_eq_size!(RootName, [u8; 56]);
