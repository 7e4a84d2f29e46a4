//! Blocks that are encoded: what the folder says of them, and what it does with hostile ones.

use super::*;
use crate::format::{HEADER_BYTES, PageKind, RECORD_BYTES, Seal};

/// Blocks 0 to 19, of which those of 5000, 8000 and 12288 bytes are encoded.
fn folder() -> (RecordedDrive, Arc<Volume>) {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..20).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    (drive, volume)
}

#[test]
fn a_folder_says_how_each_block_is_written() {
    ENCODES.set(true);
    let (drive, volume) = folder();
    let check = |volume: &Arc<Volume>| {
        for number in 0..20 {
            let block = volume.block(&key(number)).unwrap();
            let (encoding, bytes) = stored(number);
            let pages = u32::try_from(bytes.len()).unwrap().div_ceil(PAGE);
            assert_eq!((block.encoding, block.stored_bytes), (encoding, pages * PAGE));
            assert_eq!((block.bytes, block.crc), (length(number), checksum(&payload(number))));
            assert_eq!(read(volume, key(number)).unwrap(), payload(number));
        }
        let EncodedBlocks { blocks, bytes, raw_bytes } = volume.usage().encoded;
        assert_eq!((blocks, bytes, raw_bytes), (12, 16 * 4096, 28 * 4096));
        volume.check().unwrap();
    };
    check(&volume);
    let Decoded { blocks, bytes, .. } = volume.decoded();
    assert_eq!((blocks, bytes), (12, 4 * (5000 + 12_288 + 8000)));
    check(&open(&drive));
    assert!((0..20).all(|number| volume.remove(&key(number))));
    assert_eq!(volume.usage().encoded, EncodedBlocks::default());
}

#[test]
fn a_buffer_has_room_for_the_payload_and_what_is_written() {
    ENCODES.set(true);
    let (_, volume) = folder();
    let needed = volume.block(&key(3)).unwrap().buffer_bytes();
    assert_eq!(needed, 5 * PAGE as usize);
    let short = Buffer::zeroed(needed - 4096).unwrap();
    let (_, miss) = volume.read(key(3), short, Box::new(|_| ())).unwrap_err();
    assert!(matches!(miss, ReadMiss::BufferTooShort { needed: 20_480 }), "{miss}");
}

#[test]
fn what_does_not_fit_its_encoding_is_refused() {
    let (drive, pages) = (RecordedDrive::default(), layers_of(3));
    let volume = open(&drive);
    let refused = |encoding: Encoding, stored_bytes: u32| {
        let page = Page { encoding, ..pages[0] };
        let spec = BlockSpec {
            key: key(3),
            tag: NamespaceTag::default(),
            depth: 0,
            bytes: length(3),
            stored_bytes,
            crc: 0,
            pages: &[page],
        };
        volume.reserve(&spec).is_err()
    };
    assert!(refused(Encoding::Raw, 100) && refused(Encoding::Unknown(9), 100));
    assert!(refused(Encoding::Lz4, 0) && refused(Encoding::Lz4, 8193));
    assert!(!refused(Encoding::Lz4, 8192) && !refused(Encoding::Raw, 12_288));
}

/// Changes all records of blocks in the journals and tables, and seals the pages again.
fn change_records(drive: &RecordedDrive, change: impl Fn(&mut [u8])) {
    for name in drive.names().unwrap() {
        let kind = match &name {
            name if name.starts_with("journal") => PageKind::Journal,
            name if name.contains("table") => PageKind::Table,
            _ => continue,
        };
        drive.damage(&name, |bytes| {
            for page in bytes.chunks_exact_mut(PAGE as usize) {
                let Ok((seal, generation)) = Seal::of(kind, page) else { continue };
                let (count, _) = seal.check(page).unwrap();
                for record in page[HEADER_BYTES..].chunks_exact_mut(RECORD_BYTES) {
                    if record[0] == 1 {
                        change(record);
                    }
                }
                seal.put(page, count, generation);
            }
        });
    }
}

/// Changes all encoded extents, and seals them again.
fn change_frames(drive: &RecordedDrive, change: impl Fn(&mut [u8])) {
    let data = |name: &String| name.ends_with(".data");
    for name in drive.names().unwrap().into_iter().filter(data) {
        drive.damage(&name, |bytes| {
            for at in (0..bytes.len()).step_by(PAGE as usize) {
                if bytes[at..].starts_with(b"RDKE") {
                    let length = u32::from_le_bytes(*bytes[at + 8..].first_chunk().unwrap());
                    let frame = &mut bytes[at..at + length as usize];
                    change(frame);
                    frame[20..24].fill(0);
                    let crc = checksum(frame);
                    frame[20..24].copy_from_slice(&crc.to_le_bytes());
                }
            }
        });
    }
}

/// Chunks that are sealed and are not of LZ4, or of other bytes.
#[test]
fn a_hostile_extent_loses_its_block_and_no_more() {
    ENCODES.set(true);
    for at in [32, 35, 36, 60] {
        let (drive, _) = folder();
        change_frames(&drive, |frame| frame[at] ^= 0x41);
        let volume = open(&drive);
        let whole = |number: &u64| match read(&volume, key(*number)) {
            Ok(bytes) => bytes == payload(*number),
            Err(miss) => !matches!(miss, ReadMiss::Damaged),
        };
        assert_eq!((0..20).filter(whole).count(), 8, "byte {at}");
        assert_eq!(volume.damaged(), 12);
        volume.check().unwrap();
    }
}

#[test]
fn a_block_of_a_later_encoding_is_a_miss_with_a_reason_and_stays() {
    ENCODES.set(true);
    let (drive, _) = folder();
    change_records(&drive, |record| {
        if record[1] == Encoding::Lz4.code() {
            record[1] = 200;
        }
    });
    change_frames(&drive, |frame| {
        if frame[4] == Encoding::Lz4.code() {
            frame[4] = 200;
            // DRIVE-E4: nothing is known of what follows.
            frame[8..20].fill(0xff);
        }
    });
    let volume = open(&drive);
    assert_eq!(volume.losses(), []);
    let mut unknown = 0;
    for number in 0..20 {
        let is_readable = volume.block(&key(number)).unwrap().is_readable();
        assert_eq!(is_readable, read(&volume, key(number)).is_ok());
        match read(&volume, key(number)) {
            Ok(bytes) => assert_eq!(bytes, payload(number)),
            Err(miss) => {
                assert!(matches!(miss, ReadMiss::UnknownEncoding(200)), "{miss}");
                unknown += 1;
            }
        }
    }
    assert_eq!(unknown, 6);
    // It moves as it is, also from a folder that is opened once more.
    let moved = volume.collect(100).unwrap();
    assert!(moved.moved > 0 && moved.lost == 0, "{moved:?}");
    let all: Vec<u64> = (0..20).collect();
    assert_eq!(found(&open(&drive)), all);
    volume.check().unwrap();
}

#[test]
fn records_with_lengths_that_cannot_be_lose_their_blocks_and_no_more() {
    ENCODES.set(true);
    for (encoded_pages, expected) in [(0_u16, 8), (3, 8), (16_384, 8)] {
        let (drive, _) = folder();
        change_records(&drive, |record| {
            if record[1] != 0 {
                record[70..72].copy_from_slice(&encoded_pages.to_le_bytes());
            }
        });
        let volume = open(&drive);
        assert!(!volume.losses().is_empty());
        volume.check().unwrap();
        let whole = |number: &u64| read(&volume, key(*number)).is_ok();
        assert_eq!((0..20).filter(whole).count(), expected, "{encoded_pages}");
    }
}

#[test]
fn a_folder_of_version_1_is_read_on() {
    let (drive, volume) = folder();
    drop(volume);
    for name in drive.names().unwrap().into_iter().filter(|name| !name.contains("data")) {
        drive.damage(&name, |bytes| {
            for page in bytes.chunks_exact_mut(PAGE as usize) {
                page[4] = 1;
                page[8..12].fill(0);
                let crc = checksum(page);
                page[8..12].copy_from_slice(&crc.to_le_bytes());
            }
        });
    }
    ENCODES.set(true);
    let volume = open(&drive);
    assert_eq!(volume.losses(), []);
    assert_has(&volume, 0..20);
    write(&volume, 23).unwrap();
    volume.commit().unwrap();
    assert_eq!(volume.block(&key(23)).unwrap().encoding, Encoding::Lz4Planes);
    assert_has(&open(&drive), (0..20).chain([23]));
}
