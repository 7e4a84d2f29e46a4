//! Small objects in the hosts' heaps, and named roots that lead other hosts to them.

use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::ROOT_NAME_BYTES_MAX;
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm_objects::ObjectChunks;
use cxl_shm_objects::{DestroyRootError, PutRootError, RootKind};
use cxl_shm_objects::{FreeError, SharedOffset};

const TIMEOUT_MS: u64 = 30_000;

/// Allocate, name, find and free objects.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,

    #[arg(long)]
    node: u16,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Allocate an object, write it and name it; check that the same is refused a second time.
    Put { name: String, bytes: u64 },
    /// Find a root and check every byte of its object.
    Get { name: String, bytes: u64 },
    /// Show the names of all roots.
    List,
    /// Destroy a root, whichever host put it.
    Destroy { name: String },
    /// Put, get and destroy roots of its own, over and over.
    Churn { rounds: u64 },
    /// Allocate an object without a name.
    Allocate { bytes: u64 },
    /// Free an object, whichever host allocated it.
    Free { offset: u64 },
    /// Carry out what other hosts freed, and count this node's objects.
    Count,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let attachment = Attachment::attach_with(&options.region, options.node, ObjectChunks)?;
    let (member, clock) = (attachment.member(), SystemClock::start());
    match &options.action {
        Action::Put { name, bytes } => put(member, &clock, name, *bytes),
        Action::Get { name, bytes } => get(member, name, *bytes),
        Action::List => {
            let mut names: Vec<_> = member.roots().into_iter().map(|root| root.name).collect();
            names.sort();
            Ok(format!("names={}", names.join(",")))
        }
        Action::Destroy { name } => destroy(member, &clock, name),
        Action::Churn { rounds } => churn(member, &clock, *rounds),
        Action::Allocate { bytes } => {
            let offset = member.allocate(&clock, TIMEOUT_MS, *bytes)?.offset();
            Ok(format!("offset={}", offset.bytes()))
        }
        Action::Free { offset } => {
            let offset = SharedOffset::new(*offset).context("objects start on lines")?;
            member.free(&clock, TIMEOUT_MS, offset)?;
            Ok(String::new())
        }
        Action::Count => {
            member.answer_chunk_requests(&clock, TIMEOUT_MS)?;
            let usage = member.heap_usage(&clock)?;
            let whole = usage.allocated_bytes + usage.free_bytes + usage.damaged_bytes;
            ensure!(whole == usage.capacity_bytes, "bytes are missing: {usage:?}");
            Ok(format!(
                "objects={} refused_frees={} damaged_bytes={}",
                usage.objects, usage.refused_frees, usage.damaged_bytes
            ))
        }
    }
}

/// What the object of a root says: of no two names the same.
fn content(name: &str, bytes: u64) -> Vec<u8> {
    let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let byte = |at: u64| seed.wrapping_add(at.wrapping_mul(0x9E37_79B9)).to_le_bytes()[3];
    (0..bytes).map(byte).collect()
}

fn put(member: &LocalMember, clock: &SystemClock, name: &str, bytes: u64) -> Result<String> {
    let object = member.allocate(clock, TIMEOUT_MS, bytes)?;
    let offset = object.offset();
    ensure!(object.write(member.fabric(), 0, &content(name, bytes)), "it does not fit");
    let put = |name: &str| member.put_root(clock, TIMEOUT_MS, name, offset, RootKind::Leaf);
    for bad in ["", &"n".repeat(ROOT_NAME_BYTES_MAX + 1)] {
        let refused = put(bad);
        ensure!(matches!(refused, Err(PutRootError::BadName { .. })), "{refused:?}");
    }
    if let Err(error) = put(name) {
        member.free(clock, TIMEOUT_MS, offset)?;
        return Err(error.into());
    }
    let refused = put(name);
    ensure!(matches!(refused, Err(PutRootError::Exists { .. })), "{refused:?}");
    let refused = put("another name");
    ensure!(matches!(refused, Err(PutRootError::AlreadyNamed { .. })), "{refused:?}");
    let refused = member.free(clock, TIMEOUT_MS, offset);
    ensure!(matches!(refused, Err(FreeError::Named { .. })), "{refused:?}");
    Ok(format!("offset={} us={}", offset.bytes(), clock.now_us()))
}

fn get(member: &LocalMember, name: &str, bytes: u64) -> Result<String> {
    let root = member.root(name)?.with_context(|| format!("there is no root \"{name}\""))?;
    ensure!(root.kind == Some(RootKind::Leaf), "it is of kind {:?}", root.kind);
    let mut found = vec![0; usize::try_from(bytes)?];
    ensure!(root.object.read(member.fabric(), 0, &mut found), "it is smaller than it was");
    ensure!(found == content(name, bytes), "its bytes are others");
    Ok(format!("offset={}", root.object.offset().bytes()))
}

fn destroy(member: &LocalMember, clock: &SystemClock, name: &str) -> Result<String> {
    member.destroy_root(clock, TIMEOUT_MS, name)?;
    ensure!(member.root(name)?.is_none(), "it is still there");
    let refused = member.destroy_root(clock, TIMEOUT_MS, name);
    ensure!(matches!(refused, Err(DestroyRootError::NotFound { .. })), "{refused:?}");
    Ok(String::new())
}

fn churn(member: &LocalMember, clock: &SystemClock, rounds: u64) -> Result<String> {
    for round in 0..rounds {
        let name = format!("churn-{}-{}", member.node(), round % 8);
        let bytes = 1 + round * 977 % 9000;
        put(member, clock, &name, bytes)?;
        get(member, &name, bytes)?;
        let root = member.root(&name)?.context("it was just put")?;
        destroy(member, clock, &name)?;
        // Its object went with it.
        match member.free(clock, TIMEOUT_MS, root.object.offset()) {
            Err(FreeError::NotAllocated { .. } | FreeError::NotAnObject { .. }) => {}
            outcome => bail!("the object of a destroyed root was freed: {outcome:?}"),
        }
    }
    Ok(format!("rounds={rounds} us={}", clock.now_us()))
}
