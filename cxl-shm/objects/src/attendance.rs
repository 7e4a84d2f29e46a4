//! What a process that uses objects does for other hosts now and then.

use crate::Objects;
use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::{ChunkOwner, LocalMember};

/// The [`ChunkOwner`] of a process that uses objects: frees what other hosts have freed, and gives
/// chunks without objects back when other hosts ask for some ([`Member::attend`]).
///
/// [`Member::attend`]: cxl_shm::node::Member::attend
#[derive(Clone, Copy, Default, Debug)]
pub struct ObjectChunks;

impl ChunkOwner for ObjectChunks {
    fn attend(&mut self, member: &LocalMember, clock: &SystemClock) -> bool {
        let attended = member.attend(clock);
        if let Err(error) = &attended {
            tracing::warn!(%error, "the heartbeat thread stopped returning memory to other hosts");
        }
        attended.is_ok()
    }
}
