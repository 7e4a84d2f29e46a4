//! Damage to the files of a drive's folder.

use std::ops::Range;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use crossbeam_channel::bounded;
use cxl_shm::clock::SystemClock;
use kv_cache::{BlockKey, NamespaceTag};
use kv_drive::encoding::{Encoder, EncodingChoice, EncodingOptions, Plain};
use kv_drive::io::recorded::RecordedDrive;
use kv_drive::io::{Buffer, Drive, PAGE_BYTES};
use kv_drive::volume::{
    BlockSpec, SEGMENT_BYTES_MIN, Volume, VolumeOptions, checksum, rebuild_manifest,
};
use kv_drive::{ALL_LAYERS, Encoding, Page};

use super::damaged_lines::value;

const BLOCKS: u64 = 24;
/// Changes that an input makes at most.
const EDITS_MAX: usize = 32;
const PAGE: usize = PAGE_BYTES as usize;
/// Where the checksum of a sealed page is.
const CRC: Range<usize> = 8..12;

/// Writes blocks to a folder, damages its files as `input` says, and opens it again: to read, to write,
/// and, where the manifest is damaged, after another was made of what is there.
///
/// # Panics
/// When anything panics, or a wrong byte is accepted.
pub fn damaged_folder(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let drive = RecordedDrive::default();
    let volume = open(&drive).unwrap_or_else(|error| panic!("a new folder: {error}"));
    (0..BLOCKS / 2).for_each(|number| assert!(write(&volume, number), "there is room"));
    volume.commit().unwrap_or_else(|error| panic!("{error}"));
    volume.remove(&key(3));
    (BLOCKS / 2..BLOCKS).for_each(|number| assert!(write(&volume, number), "there is room"));
    volume.commit().unwrap_or_else(|error| panic!("{error}"));
    drop(volume);
    let mut forged = false;
    for _ in 0..EDITS_MAX {
        match damage(&drive, &mut input) {
            Ok(sealed) => forged |= sealed,
            Err(_) => break,
        }
        if input.is_empty() {
            break;
        }
    }
    if let Ok(volume) = Volume::open_to_read(Box::new(drive.revived()), options()) {
        use_folder(&volume, forged);
    }
    for _ in 0..2 {
        match open(&drive) {
            Ok(volume) => {
                use_folder(&volume, forged);
                for number in BLOCKS..BLOCKS + 4 {
                    let _ = write(&volume, number);
                }
                let _ = volume.commit();
                let _ = volume.collect(50);
                let _ = volume.commit();
                use_folder(&volume, forged);
            }
            Err(_) => drop(rebuild_manifest(&drive, &options(), Some([8; 16]))),
        }
    }
}

/// Changes a file. Returns whether a page was sealed again.
fn damage(drive: &RecordedDrive, input: &mut Unstructured<'_>) -> Result<bool> {
    let mut names = drive.names().unwrap_or_default();
    names.sort_unstable();
    if names.is_empty() {
        return Err(arbitrary::Error::EmptyChoose);
    }
    let name = input.choose(&names)?.clone();
    let other = input.choose(&names)?.clone();
    let mut sealed = false;
    match input.int_in_range(0..=15)? {
        0 => drop(drive.remove(&name)),
        1 => drop(drive.rename(&name, &other)),
        2 => {
            let to: u16 = input.arbitrary()?;
            drive.damage(&name, |bytes| bytes.truncate(usize::from(to)));
        }
        3 => {
            let mut copy = Vec::new();
            drive.damage(&other, |bytes| copy.clone_from(bytes));
            drive.damage(&name, |bytes| *bytes = copy);
        }
        _ => {
            let is_sealed = !name.ends_with(".data");
            let (at, bits): (u16, u64) = (input.arbitrary()?, input.arbitrary()?);
            let small = input.arbitrary::<u8>()?;
            let mut outcome = Ok(());
            drive.damage(&name, |bytes| {
                let pages = bytes.len() / PAGE;
                if pages == 0 {
                    return;
                }
                let page = usize::from(small) % pages * PAGE;
                // Four bytes at once: the smallest number that several bytes have.
                let at = page + usize::from(at) % (PAGE / 4) * 4;
                let field = at..at + 4;
                let mut before = [0; 4];
                before.copy_from_slice(&bytes[field.clone()]);
                let before = u32::from_le_bytes(before);
                match value(input, before.into(), bits) {
                    Ok(value) => bytes[field].copy_from_slice(&value.to_le_bytes()[..4]),
                    Err(error) => outcome = Err(error),
                }
                if is_sealed && !CRC.contains(&(at - page)) {
                    seal(&mut bytes[page..page + PAGE]);
                    sealed = true;
                }
            });
            outcome?;
        }
    }
    Ok(sealed)
}

/// Gives a page of a manifest, a journal or a table a checksum that fits.
fn seal(page: &mut [u8]) {
    page[CRC].fill(0);
    let crc = checksum(page);
    page[CRC].copy_from_slice(&crc.to_le_bytes());
}

fn options() -> VolumeOptions {
    VolumeOptions {
        capacity_bytes: 1 << 20,
        segment_bytes: Some(SEGMENT_BYTES_MIN),
        host: [3; 16],
        take_over: false,
        clock: Arc::new(SystemClock::start()),
    }
}

fn open(drive: &RecordedDrive) -> Result<Arc<Volume>, kv_drive::volume::OpenVolumeError> {
    Volume::open(Box::new(drive.clone()), options(), [8; 16])
}

/// Scans it and reads all that it has.
fn use_folder(volume: &Arc<Volume>, forged: bool) {
    let _ = volume.scan(|_, _| true);
    volume.check().unwrap_or_else(|broken| panic!("{broken}"));
    let keys: Vec<BlockKey> = (0..).map_while(|part| volume.keys(part)).flatten().collect();
    for key in keys {
        let _ = volume.pages(&key);
        if let Some(bytes) = read(volume, key) {
            let words: [u64; 3] = bytemuck::cast(key);
            assert!(forged || bytes == payload(words[1]), "wrong bytes were accepted");
        }
    }
    let _ = (volume.usage(), volume.endurance(), volume.losses(), volume.carried_out());
}

fn read(volume: &Arc<Volume>, key: BlockKey) -> Option<Vec<u8>> {
    let buffer = Buffer::zeroed(volume.block(&key)?.buffer_bytes()).ok()?;
    let (tell, told) = bounded(1);
    let done = Box::new(move |unverified| drop(tell.send(unverified)));
    volume.read(key, buffer, done).ok()?;
    let unverified = told.recv().unwrap_or_else(|_| panic!("a read ends"));
    let (buffer, bytes) = unverified.verify().ok()?;
    Some(buffer.bytes()?[..bytes as usize].to_vec())
}

fn key(number: u64) -> BlockKey {
    bytemuck::cast([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number, 77])
}

/// One to four pages, of which most can be encoded.
fn payload(number: u64) -> Vec<u8> {
    let bytes = 3000 + number % 5 * 3000;
    (0..bytes).map(|at| ((at / 64) ^ number).to_le_bytes()[0]).collect()
}

/// Whether it was written.
fn write(volume: &Arc<Volume>, number: u64) -> bool {
    let bytes = payload(number);
    let crc = checksum(&bytes);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut into = Buffer::zeroed(bytes.len()).unwrap_or_else(|error| panic!("{error}"));
    let options = EncodingOptions { choice: EncodingChoice::Lz4, least_saving_percent: 0 };
    let plain = Plain { key: key(number), payload: &bytes, crc };
    // Every second block is written as it is.
    let encoded = Encoder::new(options).encode(&plain, number.is_multiple_of(2), &mut into);
    let stored = match encoded.encoding {
        Encoding::Raw => Buffer::of(&bytes).unwrap_or_else(|error| panic!("{error}")),
        _ => into,
    };
    let page = |layer, offset_bytes: u32, bytes: u32, crc| Page {
        fingerprint: 9,
        layout_version: 1,
        layer,
        first_token: 16,
        last_token: 31,
        encoding: encoded.encoding,
        offset_bytes,
        bytes,
        crc,
    };
    let half = length / 2;
    let crc_of = |part: Range<u32>| checksum(&bytes[part.start as usize..part.end as usize]);
    let pages = if number.is_multiple_of(3) {
        vec![page(0, 0, half, crc_of(0..half)), page(1, half, length - half, crc_of(half..length))]
    } else {
        vec![page(ALL_LAYERS, 0, length, crc)]
    };
    let spec = BlockSpec {
        key: key(number),
        tag: NamespaceTag::from_bits(2),
        depth: 4,
        bytes: length,
        stored_bytes: encoded.stored_bytes,
        crc,
        pages: &pages,
    };
    let Ok(reservation) = volume.reserve(&spec) else { return false };
    let (tell, told) = bounded(1);
    let done = Box::new(move |_, outcome: Result<_, _>| {
        let _ = tell.send(outcome.is_ok());
    });
    reservation.write(stored, done);
    told.recv().unwrap_or(false)
}
