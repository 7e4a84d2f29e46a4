//! `rackline format`: makes memory a region.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{
    Geometry, Layout, LockProtocol, Superblock, SuperblockError, format_superblock, read_superblock,
};
use cxl_shm::member::{HOST_TIER_FOLDER, HostTierFile, watch_hearts};
use cxl_shm::region::{Region, RegionKind, RegionUse};
use cxl_shm::units::{LineOffset, LineRange, PAGE_BYTES};
use kv_cache::CacheGeometry;

use crate::output::say;

/// Make a devdax device, or a file on a single host, a Rackline region.
///
/// Done once, from one host. All blocks that were in the region are lost. Refused while the region
/// is in use, and without --force when there is anything in the memory already.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The memory: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Create the file with this size, for example 8GiB. Only for a file that does not exist yet;
    /// a device brings its size.
    #[arg(long, value_name = "SIZE")]
    create: Option<ByteSize>,

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

    /// Typical size of a KV block; decides how many descriptors there are.
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    block: ByteSize,

    /// Format even when the memory holds a region, or other data. Never while it is in use.
    #[arg(long)]
    force: bool,

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
    /// A lock manager grants them: it looks at one word a host, however many hosts wait, so this
    /// is for racks of many hosts. Without a running manager no host gets new chunks.
    #[default]
    Arbitrated,
    /// Hosts take numbers and need no manager: a lock passes from host to host in one transfer instead
    /// of two, but who takes one looks at a word of every host. For few hosts, and where nothing may
    /// depend on a manager. A dead host keeps what it held until it is declared dead and recovered.
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

/// What to format with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u16,
    pub(crate) locks: u32,
    pub(crate) lock_protocol: LockProtocol,
    pub(crate) chunk_bytes: u64,
    pub(crate) descriptors: Descriptors,
}

/// How many descriptors each node gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Descriptors {
    /// What is good for blocks of about so many bytes.
    ForBlocksOf(u64),
    /// So many.
    Exactly(CacheGeometry),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let plan = Plan {
        nodes: options.nodes,
        locks: options.locks,
        lock_protocol: options.lock.into(),
        chunk_bytes: options.chunk.as_u64(),
        descriptors: Descriptors::ForBlocksOf(options.block.as_u64()),
    };
    let region = match options.create {
        Some(size) => {
            if options.kind == Some(Kind::Devdax) {
                bail!("a device cannot be created: leave out --create, or --kind devdax");
            }
            // What cannot be laid out is refused before there is a file.
            superblock(&plan, size.as_u64())?;
            Region::create_file(&options.region, size.as_u64())?
        }
        None => Region::open(&options.region, options.kind.map(RegionKind::from))?,
    };
    let outcome = make(&region, &plan, options.force);
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
    say!(
        "  {} locks between hosts: {}",
        superblock.geometry.locks,
        match superblock.lock_protocol {
            LockProtocol::Arbitrated => "arbitrated, granted by a lock manager",
            LockProtocol::Bakery => "bakery, no lock manager needed",
        }
    );
    say!("next: rackline lock-manager --region {} --node 0", region.path().display());
    Ok(())
}

/// Formats an opened region, after everything that could speak against it was asked.
pub(crate) fn make(region: &Region, plan: &Plan, force: bool) -> Result<(Superblock, Layout)> {
    let superblock = superblock(plan, region.bytes())?;
    let _alone = RegionUse::exclusive(region)?;
    let former = refuse_if_occupied(region.path(), region.fabric(), force)?;
    let layout = format_superblock(region.fabric(), &superblock, |_, _| ())?;
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
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    let superblock = Superblock::new([high, low], geometry, cache.encode());
    Ok(Superblock { lock_protocol: plan.lock_protocol, ..superblock })
}

/// Refuses what must not be overwritten; else what region was in the memory.
fn refuse_if_occupied<F: Fabric>(
    path: &Path,
    fabric: &F,
    force: bool,
) -> Result<Option<(Superblock, Layout)>> {
    match read_superblock(fabric) {
        Ok((superblock, layout)) => {
            // The use mark shows processes of this host only.
            let beating: Vec<String> = watch_hearts(&layout, fabric, &SystemClock::start())
                .into_iter()
                .filter(|heart| heart.beats)
                .map(|heart| format!("node {} on host \"{}\"", heart.node, heart.host))
                .collect();
            if !beating.is_empty() {
                bail!(
                    "{} is in use by {}: stop what runs there first",
                    path.display(),
                    beating.join(", ")
                );
            }
            if !force {
                bail!(
                    "{} holds region {} already; --force makes it anew and loses its blocks",
                    path.display(),
                    superblock.uuid_text()
                );
            }
            Ok(Some((superblock, layout)))
        }
        Err(SuperblockError::NotOurs) if is_blank(fabric) => Ok(None),
        Err(SuperblockError::TooSmall { .. }) => Ok(None),
        Err(error) if !force => {
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
