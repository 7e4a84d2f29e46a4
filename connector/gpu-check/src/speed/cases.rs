//! What is measured.

use serde::Serialize;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    Store,
    Load,
    /// Half of the threads each.
    Both,
}

/// What the engine does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// The GPU computes checksums, and a fence waits for the memory.
    AsUsual,
    /// Each line that was stored is read again: a device that is not qualified.
    ReadBack,
    /// The processor computes checksums.
    CpuSums,
    /// Not the engine: a part of what it does, alone.
    Only(Part),
}

/// A part of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The processor flushes the payloads' lines.
    Flush,
    /// The GPU copies to or from the pool. Nothing is flushed or summed.
    Copy,
    /// The same to or from pinned memory.
    Pinned,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// What is special about it.
    pub(super) name: &'static str,
    pub(super) way: Way,
    pub(super) payload_bytes: u64,
    /// Parts that do not lie side by side on the GPU.
    pub(super) part_bytes: u64,
    /// Whether parts are layers, which arrive one after another.
    pub(super) by_layers: bool,
    /// Of a thread, in one call.
    pub(super) payloads: u64,
    pub(super) threads: u64,
    pub(super) how: How,
    /// Of the speed of plain copies; `None` for what only tells where the time goes.
    pub(super) target: Option<f64>,
}

/// The name of copies to and from the pool, alone.
pub(crate) const COPY_ONLY: &str = "copy only";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// All cases, each of a sixteenth of a pool of `pool_bytes` bytes at most.
pub(super) fn all(pool_bytes: u64) -> Vec<Case> {
    let whole = |name, payload_bytes, payloads, threads, target| Case {
        name,
        way: Way::Store,
        payload_bytes,
        part_bytes: payload_bytes,
        by_layers: false,
        payloads,
        threads,
        how: How::AsUsual,
        target: Some(target),
    };
    let scattered = |part_bytes, target| Case {
        part_bytes,
        ..whole("scattered", 32 * part_bytes, (64 * MIB / (32 * part_bytes)).max(1), 4, target)
    };
    let each_way = [
        whole("", 64 * KIB, 64, 1, 0.85),
        whole("", 2 * MIB, 1, 1, 0.95),
        whole("", 2 * MIB, 32, 1, 0.95),
        whole("", 2 * MIB, 16, 4, 0.95),
        whole("", 2 * MIB, 16, 8, 0.95),
        whole("", 16 * MIB, 4, 4, 0.95),
        scattered(8 * KIB, 0.85),
        scattered(64 * KIB, 0.85),
        scattered(640 * KIB, 0.85),
        Case { by_layers: true, ..scattered(64 * KIB, 0.85) },
        Case { how: How::CpuSums, ..whole("CPU sums", 2 * MIB, 16, 4, 0.85) },
    ];
    let ways = |case: Case| [Case { way: Way::Store, ..case }, Case { way: Way::Load, ..case }];
    let read_back = Case { how: How::ReadBack, ..whole("read back", 2 * MIB, 16, 4, 0.85) };
    let at_once = Case { way: Way::Both, ..whole("both ways", 2 * MIB, 16, 8, 0.9) };
    let only = |name, part, threads| Case {
        name,
        how: How::Only(part),
        target: None,
        ..whole("", 2 * MIB, 16, threads, 0.0)
    };
    let flushes = [1, 4, 8].map(|threads| only("flush only", Part::Flush, threads));
    let copies = [1, 4, 8].map(|threads| only(COPY_ONLY, Part::Copy, threads));
    let pinned = [4, 8].map(|threads| only("pinned", Part::Pinned, threads));
    let parts = copies.into_iter().chain(pinned).flat_map(ways).chain(flushes);
    let cases = each_way.into_iter().flat_map(ways).chain([read_back, at_once]).chain(parts);
    cases.map(|case| case.of_at_most(pool_bytes / 16)).collect()
}

impl Case {
    /// Bytes of one round.
    pub(super) fn bytes(&self) -> u64 {
        self.payload_bytes * self.payloads * self.threads
    }

    fn of_at_most(self, bytes: u64) -> Self {
        let payloads = bytes / (self.payload_bytes * self.threads);
        Self { payloads: self.payloads.min(payloads).max(1), ..self }
    }
}
