//! A manifest is made anew from journals and tables that are there.

use std::io;

use super::commit::replace_manifest;
use super::reopen::{during, new_manifest, read_manifest};
use super::replay::{Pages, Replay};
use super::salvage::replay_all;
use super::{Loss, OpenVolumeError, Opened, SEGMENT_BYTES_MIN, VolumeOptions};
use crate::format::{
    FileName, JOURNAL_MAX, MANIFEST, Manifest, NUMBER_MAX, PageError, PageKind, RECORD_BYTES,
    STORE_UNKNOWN, Seal, seal_pages,
};
use crate::io::{Content, Drive, PAGE_BYTES};

/// Identity of the store that the folder of `drive` names. `None` when it names none: it is new, or
/// its manifest is damaged or was made anew.
///
/// # Errors
/// The system's: whether it names one is not known.
pub fn store_of(drive: &dyn Drive) -> io::Result<Option<[u8; 16]>> {
    match read_manifest(drive) {
        Ok(manifest) => Ok((manifest.store != STORE_UNKNOWN).then_some(manifest.store)),
        Err(OpenVolumeError::System { source, .. }) if source.kind() != io::ErrorKind::NotFound => {
            Err(source)
        }
        Err(_) => Ok(None),
    }
}

/// Whether the folder of `drive` has a manifest that can be used.
pub(crate) fn has_manifest(drive: &dyn Drive) -> bool {
    read_manifest(drive).is_ok()
}

/// Makes a manifest when that of the folder is damaged or missing, and the folder has something to
/// name. What it names may never have been acknowledged: every block has to be read and checked
/// before it is used. Removed blocks may come back.
///
/// Nothing but the manifest names the store of a folder. Where `store` does not, the folder belongs to
/// the store of the folders with which it is opened next.
///
/// Returns what is lost of journals and tables; `None` when it made no manifest.
///
/// # Errors
/// [`OpenVolumeError`].
pub fn rebuild_manifest(
    drive: &dyn Drive,
    options: &VolumeOptions,
    store: Option<[u8; 16]>,
) -> Result<Option<Vec<Loss>>, OpenVolumeError> {
    match read_manifest(drive) {
        Ok(_) => return Ok(None),
        Err(OpenVolumeError::ManifestDamaged { .. }) => {}
        Err(OpenVolumeError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
        }
        Err(error) => return Err(error),
    }
    let names = drive.names().map_err(during("list the folder"))?;
    let mut files: Vec<_> = names.iter().filter_map(|name| FileName::read(name)).collect();
    files.sort_unstable();
    let Some((folder, generation)) = identity(drive, &files)? else {
        if !names.iter().any(|name| name == MANIFEST) {
            return Ok(None);
        }
        return replace(drive, &new(drive, options, store, &files)?).map(|()| Some(Vec::new()));
    };
    let mut manifest = new(drive, options, store, &files)?;
    (manifest.folder, manifest.generation) = (folder, generation + 1);
    let mut replay = replay_all(drive, folder, &files).map_err(during("read a journal"))?;
    if !replay.losses.is_empty() || manifest.journal == 0 {
        replay.adopt_tables(drive, folder, &files);
    }
    let newest = replay.segments.keys().next_back().map_or(0, |segment| segment + 1);
    manifest.next_segment = manifest.next_segment.max(newest.min(2 * NUMBER_MAX));
    write_journal(drive, &mut manifest, &replay)?;
    replace(drive, &manifest)?;
    Ok(Some(replay.losses))
}

fn replace(drive: &dyn Drive, manifest: &Manifest) -> Result<(), OpenVolumeError> {
    replace_manifest(drive, manifest).map_err(during("make a manifest"))
}

/// A manifest of the lengths and numbers of the files that are there, with the highest journal.
fn new(
    drive: &dyn Drive,
    options: &VolumeOptions,
    store: Option<[u8; 16]>,
    files: &[FileName],
) -> Result<Manifest, OpenVolumeError> {
    let store = store.unwrap_or(STORE_UNKNOWN);
    let mut manifest = Manifest { host: options.host, ..new_manifest(options, store) };
    let mut segment_bytes = 0;
    for name in files {
        match name {
            FileName::Data(segment) => {
                segment_bytes = segment_bytes.max(length_of(drive, name)?);
                if *segment <= NUMBER_MAX {
                    manifest.next_segment = manifest.next_segment.max(segment + 1);
                }
            }
            FileName::Table(segment, _) if *segment <= NUMBER_MAX => {
                manifest.next_segment = manifest.next_segment.max(segment + 1);
            }
            FileName::Journal(journal) if *journal <= JOURNAL_MAX => {
                manifest.journal = manifest.journal.max(*journal);
            }
            FileName::Table(..) | FileName::Journal(_) => {}
        }
    }
    let page = u64::from(PAGE_BYTES);
    manifest.segment_bytes = (segment_bytes / page * page).max(SEGMENT_BYTES_MIN);
    Ok(manifest)
}

fn length_of(drive: &dyn Drive, name: &FileName) -> Result<u64, OpenVolumeError> {
    let failed = during("open a file");
    let content = match name {
        FileName::Data(_) => Content::Payload,
        FileName::Journal(_) | FileName::Table(..) => Content::Records,
    };
    let file = Opened { drive, file: drive.open(&name.to_string(), content).map_err(&failed)? };
    drive.length(file.file).map_err(&failed)
}

/// The folder that journals and tables name, and the highest generation of a journal.
fn identity(
    drive: &dyn Drive,
    files: &[FileName],
) -> Result<Option<([u8; 16], u64)>, OpenVolumeError> {
    let mut found: Option<([u8; 16], u64)> = None;
    for name in files.iter().rev() {
        let kind = match name {
            FileName::Journal(_) => PageKind::Journal,
            FileName::Table(..) => PageKind::Table,
            FileName::Data(_) => continue,
        };
        if kind == PageKind::Table && found.is_some() {
            continue;
        }
        if let Some((folder, generation)) = newest(drive, name, kind)? {
            // The generation of a table is its version.
            let its = if kind == PageKind::Journal { generation } else { 0 };
            let before = found.map_or(0, |(_, before)| before);
            found = Some((folder, its.max(before)));
        }
    }
    Ok(found)
}

/// Writes what `replay` has to a new journal, which `manifest` then names.
fn write_journal(
    drive: &dyn Drive,
    manifest: &mut Manifest,
    replay: &Replay,
) -> Result<(), OpenVolumeError> {
    let failed = during("write a journal");
    manifest.journal += 1;
    let Manifest { folder, journal, generation, .. } = *manifest;
    let records = replay.records();
    let seal = Seal { kind: PageKind::Journal, folder, file: journal, page: 0 };
    let records = records.iter().map(|record| record.to_bytes());
    let bytes = seal_pages(seal, generation, RECORD_BYTES, records);
    let name = FileName::Journal(journal).to_string();
    let file = drive.create(&name, Content::Records, 0).map_err(&failed)?;
    let file = Opened { drive, file };
    drive.write(file.file, 0, &bytes).map_err(&failed)?;
    drive.sync(file.file).map_err(&failed)?;
    drive.sync_folder().map_err(&failed)?;
    manifest.journal_pages = u32::try_from(bytes.len() / PAGE_BYTES as usize).unwrap_or(u32::MAX);
    Ok(())
}

/// The folder that the whole pages of a file name, and the highest generation.
fn newest(
    drive: &dyn Drive,
    name: &FileName,
    kind: PageKind,
) -> Result<Option<([u8; 16], u64)>, OpenVolumeError> {
    let failed = during("read a file");
    let file = drive.open(&name.to_string(), Content::Records).map_err(&failed)?;
    let file = Opened { drive, file };
    let mut pages = Pages::new(drive, file.file).map_err(&failed)?;
    let mut found: Option<([u8; 16], u64)> = None;
    for page in 0.. {
        let Some(bytes) = pages.get(page).map_err(&failed)? else { break };
        match Seal::of(kind, bytes) {
            // No folder has so many commits: another program wrote the page.
            Ok((_, generation)) if generation > JOURNAL_MAX => {}
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
