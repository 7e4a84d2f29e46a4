//! A manifest that was lost is made anew: `rackline spill fsck --repair`.

use std::collections::BTreeSet;

use super::*;
use crate::format::STORE_UNKNOWN;

/// Writes, removes and collects until the drive stops. Returns the blocks that were acknowledged and
/// not removed.
fn work(volume: &Arc<Volume>) -> BTreeSet<u64> {
    let mut acknowledged = BTreeSet::new();
    for round in 0..8_u64 {
        for number in round * 8..round * 8 + 8 {
            let _ = write(volume, number);
        }
        let Ok(keys) = volume.commit() else { break };
        acknowledged.extend(keys.into_iter().map(number_of));
        if round > 1 && acknowledged.remove(&(round * 8 - 11)) {
            volume.remove(&key(round * 8 - 11));
        }
        if round % 3 == 2 && volume.collect(60).is_err() {
            break;
        }
    }
    acknowledged
}

fn rebuild(drive: &RecordedDrive, store: Option<[u8; 16]>) -> Vec<Loss> {
    rebuild_manifest(drive, &options(), store).unwrap().expect("there was no manifest")
}

/// The process may die in the middle of a journal that takes the place of another one.
#[test]
fn a_lost_manifest_loses_no_block_at_any_step() {
    let total = {
        let drive = RecordedDrive::default();
        work(&open(&drive));
        drive.steps()
    };
    assert!(total > 150, "{total}");
    let subsets: [fn(usize) -> bool; 4] = [|_| true, |_| false, |at| at % 2 == 0, |at| at % 3 != 0];
    for last in (40..=total).step_by(3) {
        let drive = RecordedDrive::default();
        drive.stop_after(last);
        let volume = Volume::open(Box::new(drive.clone()), options(), [8; 16]).unwrap();
        let acknowledged = work(&volume);
        for keeps in subsets {
            let left = RecordedDrive::after(&drive.crash(keeps));
            left.damage("manifest", |bytes| bytes[90] ^= 1);
            let losses = rebuild(&left, Some([8; 16]));
            let again = open(&left);
            let found = found(&again);
            for number in &acknowledged {
                assert!(
                    found.contains(number),
                    "block {number} after step {last}: {losses:?} {:?}",
                    again.losses()
                );
                assert_eq!(read(&again, key(*number)).unwrap(), payload(*number));
            }
            // What has come back beside is whole, or found damaged.
            for number in found {
                match read(&again, key(number)) {
                    Ok(bytes) => assert_eq!(bytes, payload(number)),
                    Err(miss) => assert!(matches!(miss, ReadMiss::Damaged), "{miss}"),
                }
            }
            again.check().unwrap();
            // What came back damaged gives its room back.
            again.commit().unwrap();
            again.collect(60).unwrap();
            write(&again, 900).unwrap();
            again.commit().unwrap();
            assert!(found_again(&left).contains(&900));
        }
    }
}

fn found_again(drive: &RecordedDrive) -> Vec<u64> {
    let volume = open(&drive.revived());
    assert_eq!(volume.losses(), []);
    found(&volume)
}

#[test]
fn a_manifest_that_was_made_anew_joins_the_store_with_which_it_is_opened() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    write(&volume, 1).unwrap();
    volume.commit().unwrap();
    drop(volume);
    drive.remove("manifest").unwrap();
    rebuild(&drive, None);
    assert_eq!(store_of(&drive).unwrap(), None);
    // A check changes nothing.
    let read = Volume::open_to_read(Box::new(drive.clone()), options()).unwrap();
    assert_eq!(read.store(), STORE_UNKNOWN);
    let repaired = Volume::open(Box::new(drive.clone()), options(), STORE_UNKNOWN).unwrap();
    write(&repaired, 2).unwrap();
    repaired.commit().unwrap();
    assert_eq!(store_of(&drive).unwrap(), None);
    let revived = drive.revived();
    let volume = open(&revived);
    assert_eq!(volume.store(), [8; 16]);
    assert_has(&volume, [1, 2]);
    assert_eq!(store_of(&revived).unwrap(), Some([8; 16]));
}

#[test]
fn a_folder_with_a_manifest_or_with_nothing_is_left_as_it_is() {
    let drive = RecordedDrive::default();
    assert_eq!(rebuild_manifest(&drive, &options(), None).unwrap(), None);
    assert_eq!(drive.names().unwrap(), [""; 0]);
    drop(open(&drive));
    let steps = drive.steps();
    assert_eq!(rebuild_manifest(&drive, &options(), None).unwrap(), None);
    assert_eq!(drive.steps(), steps);
}

/// One page of the journal is damaged, and a table of a failed commit has a part of a segment.
#[test]
fn an_incomplete_table_hides_nothing_that_other_pages_of_the_journal_say() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    for number in 0..6 {
        // Each in a page of its own.
        write(&volume, number).unwrap();
        volume.commit().unwrap();
    }
    drop(volume);
    let name = "segment-1.table-1";
    let file = drive.create(name, crate::io::Content::Records, 0).unwrap();
    drive.write(file, 0, &[0; 4096]).unwrap();
    drive.sync(file).unwrap();
    let journal = drive.names().unwrap().into_iter().find(|it| it.contains("journal")).unwrap();
    drive.damage(&journal, |bytes| bytes[2 * 4096 + 100] ^= 1);
    for _ in 0..2 {
        let drive = drive.revived();
        let volume = open(&drive);
        assert!(!volume.losses().is_empty());
        assert_has(&volume, [0, 1, 3, 4, 5]);
        assert!(drive.names().unwrap().iter().any(|it| it == name), "nothing has its place yet");
        write(&volume, 7).unwrap();
        volume.commit().unwrap();
        volume.commit().unwrap();
        drop(volume);
        let again = open(&drive.revived());
        assert_eq!(again.losses(), []);
        assert_has(&again, [0, 1, 3, 4, 5, 7]);
    }
}
