//! The files of all host tiers in a folder, for tools that tidy up.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::HostTierError;
use super::life_lock;
use super::tier_file::HostTierFile;
use crate::units::NodeId;

/// The file of a host tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierFileFound {
    /// Where it is.
    pub path: PathBuf,
    /// Identity of its region, as [`Superblock::uuid_text`](crate::layout::Superblock::uuid_text).
    pub region: String,
    /// Its node.
    pub node: NodeId,
    /// Its length.
    pub bytes: u64,
    /// When it was changed last, as far as the system says.
    pub changed: Option<SystemTime>,
    /// Whether a process is a member through it; an error where this user cannot tell.
    pub is_in_use: Result<bool, String>,
}

/// The files of host tiers in `folder`, in the order of their names. What has another name is passed
/// over, and nothing is changed.
///
/// # Errors
/// The system's: the folder cannot be read.
pub fn host_tier_files(folder: &Path) -> io::Result<Vec<TierFileFound>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let named = entry.file_name().to_str().and_then(read_name);
        let Some((region, node)) = named else { continue };
        // It may be gone by now.
        let Ok(about) = entry.metadata() else { continue };
        let path = entry.path();
        let is_in_use = is_in_use(&path).map_err(|error| error.to_string());
        let (bytes, changed) = (about.len(), about.modified().ok());
        found.push(TierFileFound { path, region, node, bytes, changed, is_in_use });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn is_in_use(path: &Path) -> io::Result<bool> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    life_lock::is_held(&file)
}

impl TierFileFound {
    /// Removes the file, unless a process has begun to use it. Says whether it is gone.
    ///
    /// # Errors
    /// [`HostTierError`]: it belongs to another user, say.
    pub fn remove(&self) -> Result<bool, HostTierError> {
        let Some(file) = HostTierFile::lock_within(&self.path, 0)? else { return Ok(false) };
        // One that was gone was made anew by the lock.
        if !file.is_new() && file.is_in_use()? {
            return Ok(false);
        }
        file.remove().map(|()| true)
    }
}

/// The region and the node in the name of a file: `rackline-UUID-nNODE`.
fn read_name(name: &str) -> Option<(String, NodeId)> {
    let (region, node) = name.strip_prefix("rackline-")?.rsplit_once("-n")?;
    let lengths = region.split('-').map(str::len);
    let is_uuid = lengths.eq([8, 4, 4, 4, 12])
        && region.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let node = node.parse().ok().filter(|number: &u16| number.to_string() == node)?;
    is_uuid.then(|| (region.to_owned(), NodeId(node)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Geometry, Superblock};

    const WORDS: usize = 4096;

    #[test]
    fn files_are_found_by_name_and_removed_unless_a_process_uses_them() {
        let folder = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: 16,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: 3,
            host_words: 5,
        };
        let superblock = Superblock::new([7, 9], geometry, [0; 6]);
        let path = |node| HostTierFile::path_in(folder.path(), &superblock, NodeId(node));
        for name in ["rackline-n1", "rackline-x-n1", "other", "rackline-1-2-3-4-5-n0"] {
            std::fs::write(folder.path().join(name), [1]).unwrap();
        }
        let left = HostTierFile::lock(&path(12)).unwrap().map(WORDS).unwrap();
        drop(left);
        let file = HostTierFile::lock(&path(3)).unwrap();
        let used = file.map(WORDS).unwrap();
        file.use_for_life().unwrap();
        drop(file);
        let found = host_tier_files(folder.path()).unwrap();
        let seen: Vec<_> =
            found.iter().map(|it| (it.node.0, it.is_in_use.clone(), it.bytes)).collect();
        let bytes = WORDS as u64 * 8;
        assert_eq!(seen, [(12, Ok(false), bytes), (3, Ok(true), bytes)]);
        assert!(found.iter().all(|it| it.region == superblock.uuid_text()));
        assert_eq!(found.iter().map(|it| it.remove().unwrap()).collect::<Vec<_>>(), [true, false]);
        assert!(!path(12).exists() && path(3).exists());
        // A process that began to use it after the look.
        let before = TierFileFound { is_in_use: Ok(false), ..found[1].clone() };
        assert!(!before.remove().unwrap());
        drop(used);
        assert!(before.remove().unwrap());
        assert!(before.remove().unwrap(), "it is gone, and stays so");
        assert_eq!(host_tier_files(folder.path()).unwrap(), []);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "others stay");
    }
}
