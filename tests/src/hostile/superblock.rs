//! Damage to the superblock: what a process derives from it is checked first.

use arbitrary::Unstructured;
use cxl_shm::layout::read_superblock;
use cxl_shm::verify::simulated::Settings;

use super::damaged_lines::{DamagedLines, line_number};
use super::region::{Forged, SUPERBLOCK_BYTES, geometry, use_everything};
use crate::rack::{Cluster, Mutant, lock_protocol};

/// Operations of a host, far more than it needs: a host that waits for ever ends there.
const OPERATIONS_MAX: u64 = 20_000_000;
/// Changes that an input makes at most.
const EDITS_MAX: usize = 16;
/// A superblock may ask for 8 GiB a host: a real host tier takes the pages that are written, and a
/// simulated one takes all.
const HOST_WORDS_MAX: u64 = 1 << 20;

/// Damages the superblock of a fresh region as `input` says. A superblock that is still accepted lays
/// out a region that a host joins and uses.
///
/// # Panics
/// When anything panics or does not end.
pub fn damaged_superblock(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let seed = u64::from(input.arbitrary::<u8>().unwrap_or(0));
    let (formatted, application) = geometry();
    let settings = Settings { seed, ..Settings::sticky(1, formatted.region_bytes) };
    let protocol = lock_protocol(seed);
    let cluster = Cluster::format(settings, formatted, protocol, application, Mutant::NONE);
    cluster.rack.limit_operations(OPERATIONS_MAX);
    let host = cluster.rack.host(0);
    let mut lines = DamagedLines::of(&host, 0..line_number(SUPERBLOCK_BYTES));
    for _ in 0..EDITS_MAX {
        if input.is_empty() || lines.edit(&mut input).is_err() {
            break;
        }
    }
    let Ok((superblock, _)) = read_superblock(&host) else { return };
    if superblock.geometry.host_words > HOST_WORDS_MAX {
        return;
    }
    let cluster = cluster.laid_out_by(superblock.geometry);
    if let Ok(member) = cluster.try_join(0, "worker") {
        use_everything(&cluster, &member, 0, Forged(true));
    }
}
