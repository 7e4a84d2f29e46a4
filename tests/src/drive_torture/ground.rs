//! What parent and children know alike.

use std::path::{Path, PathBuf};

use cxl_shm::verify::simulated::Random;
use kv_cache::{BlockHash, BlockKey, KeySpace, Model, Namespace, Watermarks};
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::io::EngineKind;
use kv_drive::policy::AdmissionKind;
use rackline::SessionOptions;
use rackline_agent::{BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings};

/// Hosts.
pub(super) const HOSTS: u16 = 2;
/// The host whose drives have room for everything.
pub(super) const A: u16 = 0;
/// The host whose drive is too small, and damages blocks.
pub(super) const B: u16 = 1;
/// Bytes of the region: the pool has room for a third of the blocks or so.
pub(super) const REGION_BYTES: u64 = 24 << 20;
/// No multiple of a page: what follows in its last page is not the block's.
pub(super) const BLOCK_BYTES: usize = (16 << 10) - 100;
/// Bytes of drives that a host can announce.
pub(super) const ANNOUNCED_BYTES: u64 = 256 << 20;
/// Prompts, and the blocks of each.
pub(super) const PROMPTS: u32 = 400;
pub(super) const PROMPT_BLOCKS: u32 = 8;
/// All blocks that there can be.
pub(super) const BLOCKS: u32 = PROMPTS * PROMPT_BLOCKS;
/// Bytes of each folder of A, and of that of B.
const ROOMY_BYTES: u64 = 256 << 20;
const SMALL_BYTES: u64 = 4 << 20;
/// A device that leaves a write unfinished for so long does not answer.
const SILENT_MS: u64 = 200;
/// How long a block waits that a drive did not take.
const RETRY_MS: u64 = 500;

const MODEL: Model<'_> = Model {
    name: "torture",
    revision: "drives",
    dtype: "u8",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 1,
    kv_heads: 1,
    head_dim: 1,
};

/// How many bytes the folders of `host` may have allocated, each.
pub(super) fn folder_bytes(host: u16) -> u64 {
    if host == A { ROOMY_BYTES } else { SMALL_BYTES }
}

/// The folders of `host` in that of a run.
pub(super) fn folders(place: &Path, host: u16) -> Vec<PathBuf> {
    let names: &[&str] = if host == A { &["a-1", "a-2"] } else { &["b-1"] };
    names.iter().map(|name| place.join(name)).collect()
}

/// Whose tenant the blocks are.
pub(super) fn tenant() -> Namespace {
    Namespace::new("tenant", b"")
}

/// How engines open sessions.
pub(super) fn session_options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64).with_namespace(tenant())
}

/// The hash of block `number`. Block after block, `PROMPT_BLOCKS` are a prompt.
pub(super) fn hash(number: u32) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash::new(bytes)
}

/// Under which it is found.
pub(super) fn key(number: u32) -> BlockKey {
    KeySpace::new(MODEL.fingerprint(), tenant(), BLOCK_BYTES as u64).key(&hash(number))
}

/// Its bytes, of which half can be compressed.
pub(super) fn content(number: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(number) << 8 | 1);
    let word = random.next_u64();
    let words = (0..BLOCK_BYTES.div_ceil(8)).map(|at| match at % 128 {
        0..64 => random.next_u64(),
        _ => word,
    });
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(BLOCK_BYTES);
    bytes
}

/// What the agent of `host` is told. One host encodes blocks and writes by `io_uring`, the other one
/// does neither.
pub(super) fn settings(region: &Path, place: &Path, host: u16) -> Settings {
    let capacity_bytes = Some(folder_bytes(host));
    let drives = folders(place, host).into_iter();
    let encodes = host == A;
    Settings {
        region: region.to_owned(),
        node: host,
        drives: drives.map(|path| DriveFolder { path, capacity_bytes }).collect(),
        engine: if host == A { EngineKind::Uring } else { EngineKind::Posix },
        take_over: false,
        restore: RestoreSettings { depth: 4, queue_max: 100 },
        backup: BackupSettings {
            age_ms: 0,
            admission: AdmissionKind::All,
            backlog_bytes: 16 << 20,
            commit_ms: 5,
            commit_bytes: 4 << 20,
            silent_ms: SILENT_MS,
            retry_ms: RETRY_MS,
            schedule: ScheduleSettings { depth: 4, idle_us: 1_000, write_wait_us: 50_000 },
            watermarks: Watermarks::default(),
            encoding: EncodingOptions {
                choice: if encodes { EncodingChoice::Auto } else { EncodingChoice::Raw },
                least_saving_percent: 10,
            },
        },
    }
}
