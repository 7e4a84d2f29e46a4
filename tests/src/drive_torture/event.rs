//! What children tell their parent, and what an agent is told: a line of JSON each.

use anyhow::{Context, Result};
use kv_drive::io::faulty::{Call, Fault};
pub(super) use rackline_workers::tell;
use serde::{Deserialize, Serialize};

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// It is attached, and at work.
    Up,
    /// All blocks of the agent's drives are announced, and backups have begun.
    Ready,
    /// A prompt was served: blocks that were read, of these the blocks that came from drives, and
    /// blocks that were published.
    Served {
        /// Whole and right.
        read: u64,
        /// Of these.
        restored: u64,
        /// See there.
        published: u64,
    },
    /// Why a block on a drive was a miss.
    Missed(String),
    /// Something that must never be.
    Fault(String),
    /// It has nothing left and ends in order.
    Stopped,
}

/// The event in a line.
pub(super) fn hear(line: &str) -> Result<Event> {
    serde_json::from_str(line).with_context(|| format!("no event: {line:?}"))
}

/// What an agent is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// A folder fails from now on.
    Trouble {
        /// Which one.
        folder: usize,
        /// How.
        trouble: Trouble,
        /// Calls that still succeed.
        skip: u64,
        /// Calls that fail.
        count: u64,
    },
    /// No folder fails any more.
    Mend,
}

/// What is wrong with a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Trouble {
    /// Payload is not written.
    WriteFails,
    /// Payload is written in part.
    WriteTorn,
    /// A write of payload does not end.
    WriteHangs,
    /// A record is not written.
    RecordFails,
    /// A record is written in part.
    RecordTorn,
    /// Nothing more has room.
    Full,
    /// No new file has room.
    FullForFiles,
    /// Payload is not read.
    ReadFails,
    /// A read of payload does not end.
    ReadHangs,
    /// Nothing is made durable.
    SyncFails,
    /// No name is replaced or removed.
    RenameFails,
    /// Every call fails.
    Vanishes,
    /// What is read has a wrong bit.
    BitFlips,
    /// A write of payload says that it has succeeded, and changes nothing.
    WriteLost,
}

impl Trouble {
    /// What a drive may do that keeps what it has acknowledged.
    pub(super) const HONEST: [Self; 10] = [
        Self::WriteFails,
        Self::WriteTorn,
        Self::WriteHangs,
        Self::RecordFails,
        Self::RecordTorn,
        Self::ReadFails,
        Self::ReadHangs,
        Self::SyncFails,
        Self::RenameFails,
        Self::Vanishes,
    ];
    /// What it may do besides where blocks may be lost: on a full drive some make room for others. A drive
    /// that loses its manifest needs an operator.
    pub(super) const LOSSY: [Self; 4] =
        [Self::BitFlips, Self::WriteLost, Self::Full, Self::FullForFiles];

    /// Of which calls, and what happens to them.
    pub(super) fn fault(self) -> (Option<Call>, Fault) {
        let (io, space, gone) = (
            Fault::Error(rustix::io::Errno::IO.raw_os_error()),
            Fault::Error(rustix::io::Errno::NOSPC.raw_os_error()),
            Fault::Error(rustix::io::Errno::NODEV.raw_os_error()),
        );
        let torn = Fault::Half(rustix::io::Errno::IO.raw_os_error());
        match self {
            Self::WriteFails => (Some(Call::WritePayload), io),
            Self::WriteTorn => (Some(Call::WritePayload), torn),
            Self::WriteHangs => (Some(Call::WritePayload), Fault::Delay),
            Self::RecordFails => (Some(Call::Write), io),
            Self::RecordTorn => (Some(Call::Write), torn),
            Self::Full => (Some(Call::WritePayload), space),
            Self::FullForFiles => (Some(Call::Create), space),
            Self::ReadFails => (Some(Call::ReadPayload), io),
            Self::ReadHangs => (Some(Call::ReadPayload), Fault::Delay),
            Self::SyncFails => (Some(Call::Sync), io),
            Self::RenameFails => (Some(Call::Rename), io),
            Self::Vanishes => (None, gone),
            Self::BitFlips => (Some(Call::ReadPayload), Fault::FlippedBit),
            Self::WriteLost => (Some(Call::WritePayload), Fault::Lost),
        }
    }
}
