//! Damage to any file loses what that part covers, says so, and nothing else.

use super::*;
use crate::format::{
    CarriedOut, FileName, HEADER_BYTES, JOURNAL_MAX, MANIFEST, Manifest, NUMBER_MAX, PageKind,
    RECORD_BYTES, Record, Seal,
};

/// A folder with 60 blocks in sealed segments and in the journal, some removed.
fn folder() -> (RecordedDrive, Vec<u64>) {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    for number in 0..60 {
        write(&volume, number).unwrap();
        if number % 7 == 6 {
            volume.commit().unwrap();
        }
    }
    volume.remove(&key(9));
    volume.commit().unwrap();
    let numbers = (0..60).filter(|number| *number != 9).collect();
    assert_has(&volume, (0..60).filter(|number| *number != 9));
    (drive, numbers)
}

/// Blocks that are still whole. All others are misses, and no block has wrong bytes.
fn whole(volume: &Arc<Volume>) -> Vec<u64> {
    let whole = |number: &u64| match read(volume, key(*number)) {
        Ok(bytes) => {
            assert_eq!(bytes, payload(*number));
            true
        }
        Err(ReadMiss::Damaged) => false,
        Err(miss) => panic!("block {number}: {miss}"),
    };
    let whole = found(volume).into_iter().filter(whole).collect();
    volume.check().unwrap();
    whole
}

fn files(drive: &RecordedDrive, part: &str) -> Vec<String> {
    drive.names().unwrap().into_iter().filter(|name| name.contains(part)).collect()
}

#[test]
fn a_damaged_journal_has_carried_out_nothing() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    write(&volume, 1).unwrap();
    let carried_out = CarriedOut { region: [1, 2], numbers: [5; 32] };
    volume.carry_out(carried_out);
    assert_eq!(volume.carried_out(), CarriedOut::default(), "not durable yet");
    volume.commit().unwrap();
    assert_eq!(volume.carried_out(), carried_out);
    drop(volume);
    let volume = open(&drive.revived());
    assert_eq!(volume.carried_out(), carried_out);
    write(&volume, 2).unwrap();
    volume.commit().unwrap();
    assert_eq!(volume.carried_out(), carried_out, "a later commit keeps it");
    drop(volume);
    let drive = drive.revived();
    for name in files(&drive, "journal") {
        drive.damage(&name, |bytes| bytes[100] ^= 1);
    }
    assert_eq!(open(&drive).carried_out(), CarriedOut::default());
}

#[test]
fn a_flipped_bit_in_an_extent_loses_its_block() {
    raw_and_encoded(|| {
        let (drive, numbers) = folder();
        for name in files(&drive, ".data") {
            // In the first page of the segment.
            drive.damage(&name, |bytes| bytes[20] ^= 1);
        }
        let volume = open(&drive);
        assert_eq!(volume.losses(), []);
        let segments = files(&drive, ".data").len();
        let left = whole(&volume);
        // A segment whose first block was removed has no block there.
        let lost = numbers.len() - left.len();
        assert!(lost == segments || lost + 1 == segments, "{lost} of {segments}");
        assert_eq!(volume.damaged(), lost as u64);
        // What was found damaged is gone for good.
        volume.commit().unwrap();
        assert_has(&open(&drive), left);
    });
}

#[test]
fn a_damaged_table_loses_the_blocks_of_its_segment() {
    raw_and_encoded(|| {
        let (drive, numbers) = folder();
        let tables = files(&drive, ".table");
        assert!(tables.len() > 3);
        drive.damage(&tables[0], |bytes| bytes[100] ^= 1);
        drive.damage(&tables[1], |bytes| bytes.truncate(100));
        drive.remove(&tables[2]).unwrap();
        let volume = open(&drive);
        let mut losses = volume.losses();
        losses.sort_by_key(ToString::to_string);
        assert_eq!(losses.len(), 3, "{losses:?}");
        assert!(matches!(losses[0], Loss::TablePage { page: 0, .. }), "{losses:?}");
        assert!(matches!(losses[2], Loss::Table { .. }), "{losses:?}");
        let left = whole(&volume);
        // A segment has 16 pages, and at most 16 blocks.
        assert!(left.len() < numbers.len() && left.len() + 3 * 16 >= numbers.len());
        assert_eq!(volume.damaged(), 0);
        // Writing goes on, and the next reopening has nothing to say.
        write(&volume, 100).unwrap();
        volume.commit().unwrap();
        volume.commit().unwrap();
        let again = open(&drive);
        assert_eq!(again.losses(), []);
        assert_has(&again, left.into_iter().chain([100]));
    });
}

#[test]
fn tables_of_other_segments_and_folders_are_not_believed() {
    let (drive, _) = folder();
    let (other, _) = folder();
    let tables = files(&drive, ".table");
    let bytes_of = |drive: &RecordedDrive, name: &str| {
        let mut copy = Vec::new();
        drive.damage(name, |bytes| copy.clone_from(bytes));
        copy
    };
    let neighbour = bytes_of(&drive, &tables[1]);
    drive.damage(&tables[0], |bytes| *bytes = neighbour);
    let foreign = bytes_of(&other, &tables[2]);
    drive.damage(&tables[2], |bytes| *bytes = foreign);
    let volume = open(&drive);
    let losses: Vec<_> = volume.losses().iter().map(ToString::to_string).collect();
    assert_eq!(losses.len(), 2, "{losses:?}");
    assert!(losses.iter().all(|loss| loss.contains("another page is in its place")), "{losses:?}");
    whole(&volume);
}

#[test]
fn a_missing_or_short_segment_loses_its_blocks() {
    raw_and_encoded(|| {
        let (drive, numbers) = folder();
        let segments = files(&drive, ".data");
        drive.remove(&segments[0]).unwrap();
        drive.damage(&segments[1], |bytes| bytes.truncate(3 * PAGE as usize));
        let volume = open(&drive);
        let losses = volume.losses();
        assert!(losses.iter().any(|loss| matches!(loss, Loss::Segment { .. })), "{losses:?}");
        assert!(losses.iter().any(|loss| matches!(loss, Loss::Extent { .. })), "{losses:?}");
        let left = whole(&volume);
        assert!(left.len() < numbers.len() && left.len() + 2 * 16 >= numbers.len());
    });
}

#[test]
fn a_damaged_journal_leaves_the_sealed_segments() {
    raw_and_encoded(|| {
        for damage in 0..3 {
            let (drive, numbers) = folder();
            let journal = files(&drive, "journal").remove(0);
            match damage {
                0 => drive.damage(&journal, |bytes| bytes[200] ^= 4),
                1 => drive.damage(&journal, |bytes| bytes.truncate(PAGE as usize)),
                _ => drive.remove(&journal).unwrap(),
            }
            let volume = open(&drive);
            assert!(!volume.losses().is_empty());
            let left = whole(&volume);
            // At most the newest segments, which have no table, are lost; a removed block may be back.
            let lost = numbers.iter().filter(|number| !left.contains(number)).count();
            assert!(lost <= 16, "{damage}: {lost} lost, {:?}", volume.losses());
            write(&volume, 200).unwrap();
            volume.commit().unwrap();
            volume.commit().unwrap();
            let again = open(&drive);
            assert_eq!(again.losses(), []);
            assert_has(&again, left.into_iter().chain([200]));
        }
    });
}

#[test]
fn a_manifest_that_cannot_be_used_is_refused_and_says_why() {
    let refused = |damage: &dyn Fn(&RecordedDrive)| {
        let (drive, _) = folder();
        damage(&drive);
        Volume::open(Box::new(drive), options(), [8; 16]).unwrap_err().to_string()
    };
    let flipped = refused(&|drive| drive.damage("manifest", |bytes| bytes[80] ^= 1));
    assert!(flipped.contains("checksum") && flipped.contains("fsck --repair"), "{flipped}");
    let short = refused(&|drive| drive.damage("manifest", |bytes| bytes.truncate(9)));
    assert!(short.contains("too short"), "{short}");
    let missing = refused(&|drive| drive.remove("manifest").unwrap());
    assert!(missing.contains("no manifest"), "{missing}");
}

/// Their checksums are right: another program has written them.
#[test]
fn numbers_that_no_folder_comes_to_are_refused() {
    let forged: [fn(&mut Manifest); 5] = [
        |it| it.next_segment = u32::MAX,
        |it| it.generation = u64::MAX,
        |it| it.journal = u64::MAX,
        |it| it.written_bytes = u64::MAX,
        |it| it.open_ms = u64::MAX,
    ];
    for forge in forged {
        let (drive, numbers) = folder();
        drive.damage("manifest", |bytes| {
            let mut manifest = Manifest::read(bytes).unwrap();
            forge(&mut manifest);
            *bytes = manifest.to_bytes();
        });
        let refused = Volume::open(Box::new(drive.clone()), options(), [8; 16]).unwrap_err();
        assert!(refused.to_string().contains("numbers that no folder comes to"), "{refused}");
        rebuild_manifest(&drive, &options(), Some([8; 16])).unwrap();
        assert_has(&open(&drive), numbers);
    }
    // Another program's file of such a name stays.
    let (drive, numbers) = folder();
    for name in ["segment-4294967295.data", "journal-18446744073709551615"] {
        drive.create(name, crate::io::Content::Payload, 0).unwrap();
    }
    let volume = open(&drive);
    assert_has(&volume, numbers);
    assert!(drive.names().unwrap().contains(&"segment-4294967295.data".to_owned()));
}

/// The folder counts on from the highest numbers that it takes from files, and can be opened again.
#[test]
fn the_highest_numbers_of_files_have_next_ones() {
    for name in [
        FileName::Journal(JOURNAL_MAX),
        FileName::Journal(2 * JOURNAL_MAX),
        FileName::Data(NUMBER_MAX),
        FileName::Data(2 * NUMBER_MAX),
        FileName::Table(0, 2 * NUMBER_MAX),
    ] {
        let drive = RecordedDrive::default();
        drop(open(&drive));
        drive.create(&name.to_string(), crate::io::Content::Payload, 0).unwrap();
        for round in 1..4 {
            let volume = open(&drive);
            for number in 10 * (round - 1)..10 * round {
                write(&volume, number).unwrap();
            }
            volume.commit().unwrap();
            drop(volume);
            assert_has(&open(&drive), 0..10 * round);
        }
    }
}

#[test]
fn a_folder_to_read_stays_as_it_is() {
    let (drive, numbers) = folder();
    drive.create("segment-999.data", crate::io::Content::Payload, 0).unwrap();
    let steps = drive.steps();
    let volume = Volume::open_to_read(Box::new(drive.clone()), options()).unwrap();
    volume.scan(|_, _| true).unwrap();
    assert_has(&volume, numbers);
    assert_eq!(drive.steps(), steps);
    let empty = Volume::open_to_read(Box::new(RecordedDrive::default()), options()).unwrap_err();
    assert!(matches!(empty, OpenVolumeError::ManifestMissing));
    // A writer removes what nothing names.
    open(&drive);
    assert!(!drive.names().unwrap().contains(&"segment-999.data".to_owned()));
}

/// Changes the manifest of a folder, with a checksum that fits.
fn forge_manifest(drive: &RecordedDrive, forge: impl FnOnce(&mut Manifest)) {
    drive.damage(MANIFEST, |bytes| {
        let mut manifest = Manifest::read(bytes).unwrap();
        forge(&mut manifest);
        *bytes = manifest.to_bytes();
    });
}

#[test]
fn a_journal_is_no_longer_than_its_file() {
    let (drive, numbers) = folder();
    forge_manifest(&drive, |manifest| manifest.journal_pages = u32::MAX);
    let volume = open(&drive);
    assert!(matches!(volume.losses()[..], [Loss::JournalPage { .. }]), "{:?}", volume.losses());
    assert_eq!(whole(&volume), numbers);
    write(&volume, 100).unwrap();
    volume.commit().unwrap();
    assert_eq!(open(&drive).losses(), []);
}

#[test]
fn a_table_is_no_longer_than_its_segment_can_need() {
    let (drive, numbers) = folder();
    let mut forged = false;
    for name in files(&drive, "journal") {
        drive.damage(&name, |bytes| {
            for page in bytes.chunks_exact_mut(PAGE as usize) {
                let Ok((seal, generation)) = Seal::of(PageKind::Journal, page) else { continue };
                let (count, _) = seal.check(page).unwrap();
                let records: Vec<_> = Record::all_in(page, count).flatten().collect();
                let places = page[HEADER_BYTES..].as_chunks_mut::<RECORD_BYTES>().0.iter_mut();
                for (mut record, place) in records.into_iter().zip(places) {
                    if let Record::Sealed { table_pages, .. } = &mut record {
                        forged = true;
                        *table_pages = u32::MAX;
                    }
                    *place = record.to_bytes();
                }
                seal.put(page, count, generation);
            }
        });
    }
    assert!(forged, "the journal names a table");
    let volume = open(&drive);
    assert!(volume.losses().iter().any(|loss| loss.to_string().contains("too long")));
    assert!(whole(&volume).len() >= numbers.len());
    write(&volume, 100).unwrap();
    volume.commit().unwrap();
    volume.check().unwrap();
}
