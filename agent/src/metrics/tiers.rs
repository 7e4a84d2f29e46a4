//! Blocks in the tiers of this host, and on their way between them.
//!
//! What came to a tier less what left it is there:
//!
//! ```text
//! G3  found + demotions from G1 and G2 + promotions from G4 - removed = resident
//! G4  found + demotions from G3                             - removed = resident
//! ```

use kv_drive::store::Store;
use kv_drive::volume::{Flow, Moves, Payload};
use rackline_metrics::Family;

use super::HostSeen;
use crate::figures::Figures;

const G1: &str = "G1";
const G2: &str = "G2";
const G3: &str = "G3";
const G4: &str = "G4";

/// What the folders of this host say together.
fn on_drives(store: Option<&Store>) -> (Moves, Payload) {
    let (mut moves, mut payload) = (Moves::default(), Payload::default());
    for (_, volume) in store.iter().flat_map(|store| store.volumes()) {
        let (its, bytes) = (volume.moves(), volume.payload());
        add(&mut moves.found, its.found);
        add(&mut moves.written, its.written);
        add(&mut moves.removed, its.removed);
        add(&mut moves.damaged, its.damaged);
        payload.bytes += bytes.bytes;
        payload.encoded_bytes += bytes.encoded_bytes;
        payload.decoded_bytes += bytes.decoded_bytes;
    }
    (moves, payload)
}

fn add(sum: &mut Flow, flow: Flow) {
    sum.blocks += flow.blocks;
    sum.bytes += flow.bytes;
}

pub(super) fn families(
    seen: Option<&HostSeen>,
    figures: &Figures,
    store: Option<&Store>,
) -> Vec<Family> {
    let (moves, payload) = on_drives(store);
    let mut families = residence(seen, &moves, payload.bytes);
    families.extend(ways(seen, &moves));
    if let Some(HostSeen { sums, .. }) = seen {
        let faults = Family::counter(
            "tier_page_faults_total",
            "Blocks on drives that lookups of this host waited for: they were in no higher tier.",
        );
        families.push(faults.with(&[], sums.drive_blocks));
    }
    let prefetched = Family::counter(
        "tier_prefetched_blocks_total",
        "Blocks that the agent restored, for lookups that wait and for prefetches: nothing has fetched \
         them yet.",
    );
    families.push(prefetched.with(&[], figures.restored));
    let useful = Family::counter(
        "tier_prefetch_useful_total",
        "Prefetched blocks that somebody has used before they left the pool.",
    );
    families.push(useful.with(&[], figures.useful));
    let encoded = Family::gauge(
        "spill_cold_encoded_bytes",
        "Bytes that the payload of encoded blocks on drives takes as it is written.",
    );
    families.push(encoded.with(&[], payload.encoded_bytes));
    let decoded = Family::counter(
        "spill_cold_decoded_bytes_total",
        "Bytes of payload that reads of drives have brought and checked, decoded where it was encoded.",
    );
    families.push(decoded.with(&[], payload.decoded_bytes));
    families
}

fn residence(seen: Option<&HostSeen>, moves: &Moves, bytes_on_drives: u64) -> Vec<Family> {
    let mut blocks = Family::gauge("tier_resident_blocks", "Blocks in a tier of this host.");
    let mut bytes = Family::gauge(
        "tier_resident_bytes",
        "Bytes of blocks in a tier of this host: of the pool those of their slots, of drives those \
         of their payload.",
    );
    let mut found = Family::counter(
        "tier_found_blocks_total",
        "Blocks that were in a tier when this host, or its agent, began to count.",
    );
    let mut removed =
        Family::counter("tier_removed_blocks_total", "Blocks that left a tier, for any reason.");
    if let Some(HostSeen { occupancy, sums, .. }) = seen {
        blocks.push(&[("tier", G3)], occupancy.ready_blocks);
        bytes.push(&[("tier", G3)], occupancy.used_bytes);
        found.push(&[("tier", G3)], sums.found_blocks);
        removed.push(&[("tier", G3)], sums.removed_blocks);
    }
    let resident = moves.resident();
    blocks.push(&[("tier", G4)], resident.blocks);
    bytes.push(&[("tier", G4)], bytes_on_drives);
    found.push(&[("tier", G4)], moves.found.blocks);
    removed.push(&[("tier", G4)], moves.removed.blocks + moves.damaged.blocks);
    vec![blocks, bytes, found, removed]
}

/// Blocks and bytes on their way between two tiers. What moves is copied: it stays where it was.
fn ways(seen: Option<&HostSeen>, moves: &Moves) -> [Family; 4] {
    let mut promoted = Family::counter(
        "tier_promotions_total",
        "Blocks that were copied to a higher tier: restored into the pool, or fetched out of it.",
    );
    let mut promoted_bytes = Family::counter("tier_promoted_bytes_total", "Bytes of promotions.");
    let mut demoted = Family::counter(
        "tier_demotions_total",
        "Blocks that were copied to a lower tier: published into the pool, or backed up to a drive.",
    );
    let mut demoted_bytes = Family::counter("tier_demoted_bytes_total", "Bytes of demotions.");
    if let Some(HostSeen { sums, .. }) = seen {
        let mut up = |from, to, blocks, bytes| {
            promoted.push(&[("from", from), ("to", to)], blocks);
            promoted_bytes.push(&[("from", from), ("to", to)], bytes);
        };
        let rest = |all: u64, part: u64| all.saturating_sub(part);
        up(G4, G3, sums.promoted_blocks, sums.promoted_bytes);
        up(G3, G1, sums.gpu_fetched_blocks, sums.gpu_fetched_bytes);
        let blocks = rest(sums.fetched_blocks, sums.gpu_fetched_blocks);
        up(G3, G2, blocks, rest(sums.fetched_bytes, sums.gpu_fetched_bytes));
        let mut down = |from, to, blocks, bytes| {
            demoted.push(&[("from", from), ("to", to)], blocks);
            demoted_bytes.push(&[("from", from), ("to", to)], bytes);
        };
        down(G1, G3, sums.gpu_published_blocks, sums.gpu_published_bytes);
        let blocks = rest(sums.published_blocks, sums.gpu_published_blocks);
        down(G2, G3, blocks, rest(sums.published_bytes, sums.gpu_published_bytes));
    }
    demoted.push(&[("from", G3), ("to", G4)], moves.written.blocks);
    demoted_bytes.push(&[("from", G3), ("to", G4)], moves.written.bytes);
    [promoted, promoted_bytes, demoted, demoted_bytes]
}
