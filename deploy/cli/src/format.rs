//! `rackline format`: makes memory a region.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HOST_TIER_FOLDER, HostIdentity, HostTierFile};
use cxl_shm::layout::{
    Geometry, HOST_WORDS_MAX, Layout, LockProtocol, NodeState, Superblock, SuperblockError,
    failed_extents, format_superblock_without, read_superblock,
};
use cxl_shm::lifecycle::{NodeHeartbeat, watch_heartbeats};
use cxl_shm::region::{Region, RegionKind, RegionUse};
use cxl_shm::units::{LineOffset, LineRange, PAGE_BYTES};
use kv_cache::{CacheGeometry, DriveGeometry};

use crate::output::{progress_bar, say};

/// Touched at a time.
const PREFAULT_BYTES: u64 = 16 << 20;

/// Make a devdax device, or a file on a single host, a Rackline region.
///
/// Run this once, on one host. All blocks in the region are lost. The command refuses in three
/// cases: the region is in use; the memory already holds data, and --force is missing; a host did
/// not leave the region and may only be paused, and --hosts-are-off is missing. For a device the
/// last case includes this host, because a container on it may have a device node of its own.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The memory: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Create the file with this size, for example 8GiB. Only for a file that does not exist yet;
    /// a device brings its size.
    #[arg(long, value_name = "SIZE")]
    create: Option<ByteSize>,

    /// With --create: take memory for the file only as it is used. A block that is published to
    /// memory for the first time is then several times as slow, and a full file system ends the
    /// process that publishes.
    #[arg(long, requires = "create")]
    sparse: bool,

    /// Insist that the region is of this kind.
    #[arg(long, value_name = "KIND", value_enum)]
    kind: Option<Kind>,

    /// Hosts that can share the region.
    #[arg(long, value_name = "N", default_value_t = 8)]
    nodes: u16,

    /// Locks between hosts, including eight that Rackline uses itself.
    #[arg(long, value_name = "N", default_value_t = 64)]
    locks: u32,

    /// How the locks between hosts work.
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t)]
    lock: Lock,

    /// Size of the chunks in which hosts take memory: a power of two.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    chunk: ByteSize,

    /// Smallest KV block of one rank that is to fill the pool; decides how many descriptors there
    /// are. Larger blocks fill the pool, too.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block: ByteSize,

    /// Size of the drives behind the pool, a node: decides how many of their blocks hosts can find.
    /// Further blocks on larger drives are not found. Costs the region 32 bytes a block, and each host
    /// 36 bytes of DRAM. 0 makes a region without drives. By default 8 times the node's share of the
    /// region.
    #[arg(long, value_name = "SIZE")]
    drive_bytes: Option<ByteSize>,

    /// Smallest KV block of one rank that is kept on drives. By default the size of --block.
    #[arg(long, value_name = "SIZE")]
    drive_block: Option<ByteSize>,

    /// Format even when the memory holds a region or other data. A region in use is never
    /// formatted.
    #[arg(long)]
    force: bool,

    /// With --force: you guarantee that all hosts which have not left the region are off, or cut
    /// off from the memory for good. A host that was only paused would write into the new region
    /// before it notices. A host that sends heartbeats is never overruled.
    #[arg(long, requires = "force")]
    hosts_are_off: bool,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    /// A devdax device.
    Devdax,
    /// A regular file.
    File,
}

impl From<Kind> for RegionKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Devdax => Self::Devdax,
            Kind::File => Self::File,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
enum Lock {
    /// A lock manager grants the locks. It reads one word of each host, however many hosts wait, so
    /// this suits racks of many hosts. Without a running manager no host gets new chunks.
    #[default]
    Arbitrated,
    /// Hosts take numbers and need no manager. A lock passes from host to host in one transfer
    /// instead of two, but each acquisition reads a word of every host. This suits few hosts, or
    /// racks without a manager. A dead host keeps its locks until it is declared dead and
    /// recovered.
    Bakery,
}

impl From<Lock> for LockProtocol {
    fn from(lock: Lock) -> Self {
        match lock {
            Lock::Arbitrated => Self::Arbitrated,
            Lock::Bakery => Self::Bakery,
        }
    }
}

/// What of the memory may be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overrule {
    /// Only what is blank.
    Nothing,
    /// A region, or other data.
    Content,
    /// Also a region that hosts have not left whose heartbeats have stopped.
    SilentHosts,
}

/// What to format with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u16,
    pub(crate) locks: u32,
    pub(crate) lock_protocol: LockProtocol,
    pub(crate) chunk_bytes: u64,
    pub(crate) descriptors: Descriptors,
    pub(crate) drives: Drives,
}

/// How many blocks on drives each node can announce.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drives {
    /// None: the region has no room for that.
    Nowhere,
    /// Those of drives of so many bytes a node, by default a multiple of the node's share of the
    /// region, with blocks of so many bytes or more.
    Of { drive_bytes: Option<u64>, block_bytes: u64 },
}

/// How much larger drives are taken to be than the region.
const DRIVES_TIMES_REGION: u64 = 8;

impl Drives {
    fn geometry(self, region_bytes: u64, nodes: u16) -> Option<DriveGeometry> {
        let Self::Of { drive_bytes, block_bytes } = self else { return None };
        let share = || (region_bytes / u64::from(nodes.max(1))).saturating_mul(DRIVES_TIMES_REGION);
        DriveGeometry::suggest(drive_bytes.unwrap_or_else(share), block_bytes, nodes)
    }
}

/// How many descriptors each node gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Descriptors {
    /// What is good for blocks of so many bytes or more.
    ForBlocksOf(u64),
    /// So many.
    Exactly(CacheGeometry),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (block, chunk) = (options.block, options.chunk);
    if block.as_u64() == 0 || block > chunk {
        bail!(
            "--block {block}: a block has at least one byte and at most the {chunk} of a chunk; give \
             another --block, or a larger --chunk"
        );
    }
    let drive_block = options.drive_block.unwrap_or(block);
    if drive_block.as_u64() == 0 {
        bail!(
            "--drive-block {drive_block}: a block has at least one byte; give another --drive-block"
        );
    }
    let drive_bytes = options.drive_bytes.map(|size| size.as_u64());
    let drives = Drives::Of { drive_bytes, block_bytes: drive_block.as_u64() };
    let plan = Plan {
        nodes: options.nodes,
        locks: options.locks,
        lock_protocol: options.lock.into(),
        chunk_bytes: options.chunk.as_u64(),
        descriptors: Descriptors::ForBlocksOf(options.block.as_u64()),
        drives,
    };
    let region = match options.create {
        Some(size) => {
            if options.kind == Some(Kind::Devdax) {
                bail!("a device cannot be created: omit --create, or --kind devdax");
            }
            // What cannot be laid out is refused before there is a file.
            superblock(&plan, size.as_u64())?;
            Region::create_file(&options.region, size.as_u64())?
        }
        None => Region::open(&options.region, options.kind.map(RegionKind::from))?,
    };
    let overrule = match (options.force, options.hosts_are_off) {
        (false, _) => Overrule::Nothing,
        (true, false) => Overrule::Content,
        (true, true) => Overrule::SilentHosts,
    };
    let mut outcome = make(&region, &plan, overrule);
    if options.create.is_some() && !options.sparse {
        let sparse = "--sparse takes memory for the file only as it is used";
        outcome = outcome.and_then(|made| prefault(&region).context(sparse).map(|()| made));
    }
    if outcome.is_err() && options.create.is_some() {
        region.remove_file().context("and the new file could not be removed")?;
    }
    let (superblock, layout) = outcome?;
    if options.json {
        say!(
            "{}",
            serde_json::json!({
                "uuid": superblock.uuid_text(),
                "region": region.path(),
                "region_bytes": superblock.geometry.region_bytes,
                "nodes": superblock.geometry.nodes,
                "locks": superblock.geometry.locks,
                "lock_protocol": superblock.lock_protocol.to_string(),
                "chunks": layout.chunks(),
                "chunk_bytes": superblock.geometry.chunk_bytes,
                "payload_offset": layout.payload().offset(),
                "payload_bytes": layout.payload().bytes(),
                "drive_blocks": drive_blocks(&superblock),
            })
        );
        return Ok(());
    }
    say!("{} is region {}", region.path().display(), superblock.uuid_text());
    say!(
        "  {} for {} nodes: {} chunks of {} for blocks, {} of metadata",
        ByteSize(superblock.geometry.region_bytes),
        superblock.geometry.nodes,
        layout.chunks(),
        ByteSize(superblock.geometry.chunk_bytes),
        ByteSize(layout.metadata().bytes()),
    );
    match drive_blocks(&superblock) {
        0 => say!("  no room to announce blocks on drives"),
        blocks => say!("  room to announce {blocks} blocks on the drives of each node"),
    }
    say!(
        "  {} locks between hosts: {}",
        superblock.geometry.locks,
        match superblock.lock_protocol {
            LockProtocol::Arbitrated => "arbitrated, granted by a lock manager",
            LockProtocol::Bakery =>
                "bakery, granted without a lock manager, which declares dead hosts",
        }
    );
    say!("next: rackline lock-manager --region {} --node 0", region.path().display());
    Ok(())
}

/// Blocks on drives that each node can announce.
fn drive_blocks(superblock: &Superblock) -> u32 {
    let Geometry { nodes, area_lines, .. } = superblock.geometry;
    let cache = CacheGeometry::decode(superblock.application, nodes, area_lines);
    cache.ok().and_then(|cache| cache.drives()).map_or(0, |drives| drives.slots())
}

/// Takes memory for the whole region, so that no publish pays for the first touch of a page.
pub(crate) fn prefault(region: &Region) -> Result<()> {
    let bar = progress_bar(region.bytes(), "pre-faulting {bar:40} {bytes}/{total_bytes}");
    region.prefault(PREFAULT_BYTES, |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok(())
}

/// Formats an opened region, after everything that could speak against it was asked.
pub(crate) fn make(
    region: &Region,
    plan: &Plan,
    overrule: Overrule,
) -> Result<(Superblock, Layout)> {
    let superblock = superblock(plan, region.bytes())?;
    let _alone = RegionUse::exclusive(region)?;
    let former = refuse_if_occupied(region.path(), region.fabric(), overrule, marked_boot(region))?;
    // FAULT-C4.
    let failed = former.as_ref().map_or_else(Vec::new, |(_, layout)| {
        region.fabric().refresh(layout.chunk_table());
        failed_extents(layout, region.fabric())
    });
    let layout = format_superblock_without(region.fabric(), &superblock, &failed, |_, _| ())?;
    if region.fabric().is_cut_off() {
        // FAULT-F4: nothing of it has reached the memory.
        bail!("{}: {}", region.path().display(), SuperblockError::MemoryFailed);
    }
    if let Some((former, layout)) = former {
        // Of processes that were killed; nobody on this host uses the region now.
        HostTierFile::remove_all(Path::new(HOST_TIER_FOLDER), &former, &layout)?;
    }
    Ok((superblock, layout))
}

/// The superblock of a new region of `region_bytes`.
pub(crate) fn superblock(plan: &Plan, region_bytes: u64) -> Result<Superblock> {
    let cache = match plan.descriptors {
        Descriptors::ForBlocksOf(block_bytes) => {
            CacheGeometry::suggest(region_bytes, plan.nodes, block_bytes)
        }
        Descriptors::Exactly(cache) => cache,
    };
    let cache = cache.with_drives(plan.drives.geometry(region_bytes, plan.nodes));
    let mut geometry = Geometry {
        region_bytes,
        nodes: plan.nodes,
        locks: plan.locks,
        chunk_bytes: plan.chunk_bytes,
        area_lines: cache.area_lines(plan.nodes),
        host_words: 0,
    };
    // How many chunks there are decides how much each host tier has to say about them.
    let layout = Layout::new(geometry)?;
    geometry.host_words = u64::try_from(cache.host_words(&layout))?;
    if let Some(drives) = cache.drives().filter(|_| geometry.host_words > HOST_WORDS_MAX) {
        bail!(
            "{} blocks on the drives of each node: a host would need {} of its memory to know all \
             of them, and {} is the most; give a smaller --drive-bytes or a larger --drive-block",
            drives.slots(),
            ByteSize(geometry.host_words * 8),
            ByteSize(HOST_WORDS_MAX * 8),
        );
    }
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    let superblock = Superblock::new([high, low], geometry, cache.encode());
    Ok(Superblock { lock_protocol: plan.lock_protocol, ..superblock })
}

/// Whether the silent inhabitant of a slot may write again. Not one of this boot of this machine,
/// when `marked` is that boot: then the caller's use mark excludes every process of this machine.
fn may_wake<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    heartbeat: &NodeHeartbeat,
    marked: Option<[u64; 2]>,
) -> bool {
    let line = layout.node_line(heartbeat.node).fresh(fabric).ok();
    let is_marked = !heartbeat.in_admission
        && marked.is_some_and(|boot| line.is_some_and(|line| line.boot_id() == boot));
    !heartbeat.state.is_some_and(NodeState::is_vacant) && !is_marked
}

/// The boot all of whose processes the exclusive use mark of `region` excludes; `None` when it may
/// leave some out. A file in this host's memory has one inode for all processes of the kernel, and
/// the mark is on that. The same device may have several nodes, with a mark each: one for every
/// container. All containers of a kernel have the same boot id.
fn marked_boot(region: &Region) -> Option<[u64; 2]> {
    let boot_id = HostIdentity::current().ok()?.boot_id;
    (region.is_own_memory() && boot_id != [0; 2]).then_some(boot_id)
}

/// Refuses what must not be overwritten; else what region was in the memory. `marked` is that of
/// [`marked_boot`].
fn refuse_if_occupied<F: Fabric>(
    path: &Path,
    fabric: &F,
    overrule: Overrule,
    marked: Option<[u64; 2]>,
) -> Result<Option<(Superblock, Layout)>> {
    match read_superblock(fabric) {
        Ok((superblock, layout)) => {
            // The use mark shows processes of this host only.
            let heartbeats = watch_heartbeats(&layout, fabric, &SystemClock::start());
            let in_words = |heartbeats: Vec<&NodeHeartbeat>| {
                let words =
                    heartbeats.iter().map(|it| format!("node {} on host \"{}\"", it.node, it.host));
                words.collect::<Vec<_>>().join(", ")
            };
            let beating: Vec<_> = heartbeats.iter().filter(|heartbeat| heartbeat.beats).collect();
            if !beating.is_empty() {
                bail!(
                    "{} is in use by {}: stop what runs there first",
                    path.display(),
                    in_words(beating)
                );
            }
            if overrule == Overrule::Nothing {
                bail!(
                    "{} already holds region {}; --force formats it again and loses its blocks",
                    path.display(),
                    superblock.uuid_text()
                );
            }
            let silent: Vec<_> = heartbeats
                .iter()
                .filter(|heartbeat| may_wake(&layout, fabric, heartbeat, marked))
                .collect();
            if overrule != Overrule::SilentHosts && !silent.is_empty() {
                bail!(
                    "{}: {} did not leave the region and may only be paused; start and stop \
                     Rackline there, so that the host leaves in order, or add --hosts-are-off when \
                     those hosts are certainly off",
                    path.display(),
                    in_words(silent)
                );
            }
            Ok(Some((superblock, layout)))
        }
        Err(SuperblockError::NotOurs) if is_blank(fabric) => Ok(None),
        Err(SuperblockError::TooSmall { .. }) => Ok(None),
        Err(error @ SuperblockError::MemoryFailed) => bail!("{}: {error}", path.display()),
        Err(error) if overrule == Overrule::Nothing => {
            bail!("{} is not blank ({error}); --force overwrites whatever is in it", path.display())
        }
        Err(_) => Ok(None),
    }
}

/// Whether the pages of a superblock hold nothing but zeroes.
fn is_blank<F: Fabric>(fabric: &F) -> bool {
    let first = LineOffset::new(0).and_then(|line| LineRange::new(line, 3 * PAGE_BYTES / 64));
    first.is_some_and(|lines| {
        fabric.refresh(lines);
        lines.iter().all(|line| fabric.read_line(line) == [0; 8])
    })
}

#[cfg(test)]
mod tests {
    use cxl_shm::host::{HostTier, ProcLiveness, ProcessIdentity};
    use cxl_shm::node::Member;
    use cxl_shm::verify::SimulatedBackend;
    use cxl_shm::verify::fixture::{SMALL, SmallRegion};

    use super::*;

    #[test]
    fn a_host_that_may_only_be_paused_is_overruled_by_name_alone() {
        let here = HostIdentity::current().unwrap();
        let marked = Some(here.boot_id);
        for (host, leaves, marked, refused) in [
            (HostIdentity::simulated(1), false, marked, true),
            (HostIdentity::simulated(1), true, marked, false),
            (here.clone(), false, marked, false),
            // Of a device, whose mark does not cover a container with a device node of its own.
            (here.clone(), false, None, true),
            (here, true, None, false),
        ] {
            let SmallRegion { rack, .. } = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let memory = rack.host_memory(1, HostTier::words_of(&SMALL));
            let (me, clock) = (ProcessIdentity::current().unwrap(), SystemClock::start());
            let member = Member::<SimulatedBackend>::join(
                rack.host(1),
                memory,
                1,
                &host,
                me,
                ProcLiveness,
                &clock,
            );
            let member = member.unwrap();
            if leaves {
                member.leave();
            } else {
                drop(member);
            }
            let ask = |overrule| {
                refuse_if_occupied(Path::new("region"), &rack.host(0), overrule, marked).map(drop)
            };
            assert!(ask(Overrule::Nothing).unwrap_err().to_string().contains("--force"));
            let forced = ask(Overrule::Content);
            assert_eq!(forced.is_err(), refused, "{} {leaves}: {forced:?}", host.name);
            if let Err(error) = forced {
                let message = error.to_string();
                assert!(
                    message.contains("node 1") && message.contains("--hosts-are-off"),
                    "{message}"
                );
                ask(Overrule::SilentHosts).unwrap();
            }
        }
    }
}
