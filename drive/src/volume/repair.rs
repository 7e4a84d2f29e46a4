//! A manifest is made anew from journals and tables that are there.

use super::commit::replace_manifest;
use super::reopen::{during, new_manifest, read_manifest};
use super::replay::Pages;
use super::{OpenVolumeError, Opened, SEGMENT_BYTES_MIN, VolumeOptions};
use crate::format::{FileName, MANIFEST, Manifest, PageError, PageKind, Seal};
use crate::io::{Content, Drive, PAGE_BYTES};

/// Identity of the store that the folder of `drive` names. `None` when it names none.
#[must_use]
pub fn store_of(drive: &dyn Drive) -> Option<[u8; 16]> {
    read_manifest(drive).ok().map(|manifest| manifest.store)
}

/// Makes a manifest when that of the folder is damaged or missing, and the folder has something to
/// name. What it names may never have been acknowledged: every block has to be read and checked
/// before it is used. Removed blocks may come back. Says whether it made one.
///
/// # Errors
/// [`OpenVolumeError`].
pub fn rebuild_manifest(
    drive: &dyn Drive,
    options: &VolumeOptions,
    store: [u8; 16],
) -> Result<bool, OpenVolumeError> {
    match read_manifest(drive) {
        Ok(_) => return Ok(false),
        Err(OpenVolumeError::ManifestDamaged { .. }) => {}
        Err(OpenVolumeError::System { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let names = drive.names().map_err(during("list the folder"))?;
    let mut files: Vec<_> = names.iter().filter_map(|name| FileName::read(name)).collect();
    files.sort_unstable_by(|a, b| b.cmp(a));
    let mut manifest = Manifest { host: options.host, ..new_manifest(options, store) };
    let mut segment_bytes = 0;
    let mut is_known = false;
    for name in &files {
        let content =
            if matches!(name, FileName::Data(_)) { Content::Payload } else { Content::Records };
        let file = drive.open(&name.to_string(), content).map_err(during("open a file"))?;
        let file = Opened { drive, file };
        let length = drive.length(file.file).map_err(during("open a file"))?;
        match name {
            FileName::Data(_) => segment_bytes = segment_bytes.max(length),
            FileName::Journal(journal) if manifest.journal == 0 => {
                let Some((folder, generation)) = newest(drive, &file, PageKind::Journal)? else {
                    continue;
                };
                (manifest.folder, is_known) = (folder, true);
                manifest.generation = generation + 1;
                manifest.journal = *journal;
                manifest.journal_pages =
                    u32::try_from(length / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX);
            }
            FileName::Table(..) if !is_known => {
                if let Some((folder, _)) = newest(drive, &file, PageKind::Table)? {
                    (manifest.folder, is_known) = (folder, true);
                }
            }
            FileName::Journal(_) | FileName::Table(..) => {}
        }
    }
    if !is_known && !names.iter().any(|name| name == MANIFEST) {
        return Ok(false);
    }
    let page = u64::from(PAGE_BYTES);
    manifest.segment_bytes = (segment_bytes / page * page).max(SEGMENT_BYTES_MIN);
    replace_manifest(drive, &manifest).map_err(during("make a manifest"))?;
    Ok(true)
}

/// The folder that the whole pages of a file name, and the highest generation.
fn newest(
    drive: &dyn Drive,
    file: &Opened<'_>,
    kind: PageKind,
) -> Result<Option<([u8; 16], u64)>, OpenVolumeError> {
    let failed = during("read a file");
    let mut pages = Pages::new(drive, file.file).map_err(&failed)?;
    let mut found: Option<([u8; 16], u64)> = None;
    for page in 0.. {
        let Some(bytes) = pages.get(page).map_err(&failed)? else { break };
        match Seal::of(kind, bytes) {
            Ok((seal, generation)) => {
                let before = found.map_or(0, |(_, before)| before);
                found = Some((seal.folder, generation.max(before)));
            }
            Err(PageError::Version(version)) => return Err(OpenVolumeError::OtherVersion(version)),
            Err(_) => {}
        }
    }
    Ok(found)
}
