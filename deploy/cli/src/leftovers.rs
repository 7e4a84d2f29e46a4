//! `rackline leftovers`: files of this host that belong to regions which are gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::host::{HOST_TIER_FOLDER, TierFileFound, host_tier_files};
use cxl_shm::layout::{SuperblockError, read_superblock};
use cxl_shm::region::Region;
use serde::Serialize;

use crate::output::say;

/// List the files in /dev/shm that processes of this host left there for regions which are gone, and
/// remove them.
///
/// A host keeps a file for each region that its processes use. The last process that leaves removes it.
/// After a kill of all processes it stays. It is of use as long as its region is there: then the next
/// process takes it over. A region is gone when no device (/dev/dax*), no file in /dev/shm and no --region
/// has it, because it was removed or formatted anew.
///
/// Files that a process uses, and files of other users, stay. When a device may have a region that cannot
/// be read, nothing is removed.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Files elsewhere that are regions: what belongs to them stays.
    #[arg(long, value_name = "PATH")]
    region: Vec<PathBuf>,

    /// Where to look: the /dev/shm of containers may be mounted elsewhere.
    #[arg(long, value_name = "FOLDER", default_value = HOST_TIER_FOLDER)]
    folder: PathBuf,

    /// Remove the files of regions that are gone.
    #[arg(long)]
    remove: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A file of a host tier, and what becomes of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Leftover {
    path: PathBuf,
    region: String,
    node: u16,
    bytes: u64,
    /// Since its last change.
    age_s: Option<u64>,
    /// `gone`: of a region that is gone. `in_use`: a process uses it. `of_region`: its region is there.
    /// `unknown`: this user cannot tell.
    state: &'static str,
    /// The same in words.
    why: String,
    removed: bool,
}

/// Where regions are, by their identity.
type Regions = BTreeMap<String, PathBuf>;

pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = &options.folder;
    let regions = regions_here(folder, &options.region)?;
    let files = host_tier_files(folder).with_context(|| format!("cannot read {folder:?}"))?;
    let mut leftovers = Vec::new();
    for file in &files {
        let mut leftover = Leftover::new(file, &regions);
        if options.remove && leftover.state == "gone" {
            match file.remove() {
                Ok(true) => leftover.removed = true,
                Ok(false) => {
                    let why = "a process began to use it".to_owned();
                    (leftover.state, leftover.why) = ("in_use", why);
                }
                Err(error) => {
                    let why = format!("it cannot be removed: {error}");
                    (leftover.state, leftover.why) = ("unknown", why);
                }
            }
        }
        leftovers.push(leftover);
    }
    if options.json {
        say!("{}", serde_json::to_string(&leftovers)?);
    } else {
        print(&leftovers, options.remove);
    }
    Ok(())
}

impl Leftover {
    fn new(file: &TierFileFound, regions: &Regions) -> Self {
        let TierFileFound { path, region, node, bytes, changed, is_in_use } = file;
        let (state, why) = match (is_in_use, regions.get(region)) {
            (Err(error), _) => ("unknown", format!("this user cannot tell: {error}")),
            (Ok(true), _) => ("in_use", "a process of this host uses it".to_owned()),
            (Ok(false), Some(place)) => {
                ("of_region", format!("its region is there: {}", place.display()))
            }
            (Ok(false), None) => ("gone", "its region is gone, or was formatted anew".to_owned()),
        };
        Self {
            path: path.clone(),
            region: region.clone(),
            node: node.0,
            bytes: *bytes,
            age_s: changed.and_then(|at| Some(at.elapsed().ok()?.as_secs())),
            state,
            why,
            removed: false,
        }
    }
}

fn print(leftovers: &[Leftover], removes: bool) {
    for Leftover { path, node, bytes, age_s, why, removed, .. } in leftovers {
        let age = age_s.map_or_else(String::new, |s| format!(", {} h old", s / 3600));
        let removed = if *removed { "; removed" } else { "" };
        say!("{} (node {node}, {}{age}): {why}{removed}", path.display(), ByteSize(*bytes));
    }
    let gone: Vec<_> = leftovers.iter().filter(|it| it.state == "gone").collect();
    let bytes = ByteSize(gone.iter().map(|it| it.bytes).sum());
    match (gone.len(), removes) {
        (0, _) => say!("no file of a region that is gone"),
        (count, true) => say!("removed {count} files of regions that are gone: {bytes}"),
        (count, false) => {
            say!("{count} files of regions that are gone: {bytes}; `--remove` removes them");
        }
    }
}

/// The regions that this host has.
fn regions_here(folder: &Path, given: &[PathBuf]) -> Result<Regions> {
    let mut regions = Regions::new();
    for path in given {
        let (uuid, path) = region_at(path).with_context(|| path.display().to_string())?;
        regions.insert(uuid, path);
    }
    for path in named(Path::new("/dev"), |name| name.starts_with("dax"))? {
        match region_at(&path) {
            Ok((uuid, path)) => drop(regions.insert(uuid, path)),
            // Its region may be any: nothing may be told to be gone.
            Err(error) if may_be_a_region(&error) => {
                let reason = crate::in_words(&error);
                bail!(
                    "cannot tell which region {} has, so which files are of regions that are gone: \
                     {reason}",
                    path.display()
                );
            }
            Err(_) => {}
        }
    }
    for path in named(folder, |name| !name.starts_with("rackline-"))? {
        // Most are other programs' files, of lengths that no region has.
        if let Ok((uuid, path)) = region_at(&path) {
            regions.insert(uuid, path);
        }
    }
    Ok(regions)
}

fn region_at(path: &Path) -> Result<(String, PathBuf)> {
    let region = Region::open_read_only(path)?;
    let (superblock, _) = read_superblock(region.fabric())?;
    Ok((superblock.uuid_text(), path.to_owned()))
}

/// Whether a device may have a region that was not read: one of another version, a damaged one.
fn may_be_a_region(error: &anyhow::Error) -> bool {
    !matches!(
        error.downcast_ref(),
        Some(SuperblockError::NotOurs | SuperblockError::TooSmall { .. })
    )
}

fn named(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {folder:?}"))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_folder = entry.file_type().is_ok_and(|it| it.is_dir());
        if !is_folder && entry.file_name().to_str().is_some_and(&is_wanted) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
