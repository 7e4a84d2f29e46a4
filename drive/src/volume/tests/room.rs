//! The capacity is a hard bound, and room comes back.

use super::*;

/// Bytes that all files of the drive have allocated.
fn allocated(drive: &RecordedDrive) -> u64 {
    let names = drive.names().unwrap();
    let of = |name: &String| {
        let file = drive.open(name, crate::io::Content::Records).unwrap();
        let bytes = drive.allocated(file).unwrap();
        drive.close(file);
        bytes
    };
    names.iter().map(of).sum()
}

/// Writes blocks from `first` on until the folder is full. Says how many.
fn fill(volume: &Arc<Volume>, first: u64) -> u64 {
    for number in first.. {
        match write(volume, number) {
            Ok(()) => {}
            Err(error) => {
                assert!(error.contains("full"), "{error}");
                return number - first;
            }
        }
    }
    0
}

/// Removes the blocks that leave next, until `bytes` are free of them.
fn evict(volume: &Arc<Volume>, bytes: u64) -> usize {
    volume.remove_all(&volume.oldest(bytes, None, |_| true))
}

#[test]
fn a_segment_that_goes_takes_its_blocks_with_it_in_one_record() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    let count = fill(&volume, 0);
    assert!(count > 20, "{count}");
    volume.commit().unwrap();
    let before = volume.endurance().written_bytes;
    let keys: Vec<_> = (0..count).map(key).collect();
    assert_eq!(volume.remove_all(&keys) as u64, count);
    volume.commit().unwrap();
    let pages = (volume.endurance().written_bytes - before) / 4096;
    // A page of the journal and two of the manifest; and one for the blocks of the open segment.
    assert!(pages <= 4, "{pages} pages for {count} blocks");
    volume.check().unwrap();
    assert!(found(&open(&drive)).is_empty());
}

#[test]
fn a_commit_of_a_collection_is_told_by_the_next() {
    let volume = open(&RecordedDrive::default());
    write(&volume, 1).unwrap();
    volume.collect(90).unwrap();
    assert_eq!(found(&volume), [1]);
    assert_eq!(volume.commit().unwrap(), [key(1)]);
    assert_eq!(volume.commit().unwrap(), []);
}

#[test]
fn a_full_folder_refuses_and_never_passes_its_capacity() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    let mut next = 0;
    for _ in 0..6 {
        // What closed segments did not use comes back with a commit.
        loop {
            let count = fill(&volume, next);
            volume.commit().unwrap();
            volume.check().unwrap();
            next += count;
            if count == 0 {
                break;
            }
        }
        assert!(allocated(&drive) <= 1 << 20, "{} bytes", allocated(&drive));
        assert!(volume.usage().free < 2 * SEGMENT_BYTES_MIN);
        // A third goes: those that were not used for longest.
        assert!(evict(&volume, 300_000) > 20);
        volume.check().unwrap();
        for _ in 0..20 {
            volume.collect(80).unwrap();
            volume.check().unwrap();
            assert!(allocated(&drive) <= 1 << 20, "{} bytes", allocated(&drive));
        }
        assert!(volume.usage().free >= 4 * SEGMENT_BYTES_MIN, "{:?}", volume.usage());
    }
    let left = found(&volume);
    assert!(left.len() > 25 && next > 200, "{} of {next}", left.len());
    volume.commit().unwrap();
    assert_has(&open(&drive), left);
}

#[test]
fn blocks_leave_by_their_last_use() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..30).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    let used: Vec<_> = (0..10).map(key).collect();
    volume.used(&used);
    // A scan of all blocks is no use of them.
    (10..30).for_each(|number| drop(read(&volume, key(number)).unwrap()));
    let blocks = evict(&volume, 20 * 4096);
    assert!((5..20).contains(&blocks), "{blocks}");
    assert!((0..10).all(|number| volume.find(&key(number)).is_some()));
    let all = evict(&volume, u64::from(u32::MAX));
    assert_eq!(all + blocks, 30);
    volume.commit().unwrap();
    volume.check().unwrap();
    assert_has(&volume, []);
}

#[test]
fn only_blocks_of_the_namespace_that_may_leave_are_chosen() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..30).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    let [other, own] = [1, 2].map(NamespaceTag::from_bits);
    assert_eq!((volume.bytes_of(other), volume.bytes_of(own)), (0, volume.usage().live));
    assert_eq!(volume.oldest(1, Some(other), |_| true), []);
    // Block 1 has one page. The search goes on until the pages are enough.
    let stays = |wanted: &BlockKey| number_of(*wanted) % 5 == 1;
    let chosen = volume.oldest(5 * 4096, Some(own), stays);
    assert_eq!(chosen.len(), 5);
    assert!(chosen.iter().all(stays));
    assert_eq!(volume.remove_all(&chosen), 5);
    assert_eq!(volume.remove_all(&chosen), 0);
    volume.check().unwrap();
}

#[test]
fn blocks_of_a_folder_that_is_opened_again_leave_before_new_ones() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..10).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    drop(volume);
    let volume = open(&drive);
    (10..20).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    volume.used(&[key(3)]);
    let order: Vec<_> = volume.oldest(u64::MAX, None, |_| true);
    let mut old: Vec<_> = order[..9].iter().map(|key| number_of(*key)).collect();
    old.sort_unstable();
    assert_eq!(old, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    assert_eq!(order[19], key(3));
}

#[test]
fn memory_of_removed_blocks_goes_back_to_the_drive_at_their_commit() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..30).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    volume.commit().unwrap();
    let before = allocated(&drive);
    for number in 10..20 {
        volume.remove(&key(number));
    }
    assert_eq!(allocated(&drive), before);
    volume.commit().unwrap();
    // Two of five kinds of blocks: 5000, 4096, 100, 12288 and 8000 bytes and a directory of two pages.
    assert_eq!(before - allocated(&drive), 2 * (2 + 1 + 1 + 3 + 2 + 2) * u64::from(PAGE));
    assert_eq!(volume.usage().garbage, 0);
    // What a crash kept from being given back goes when the folder is opened.
    let again = open(&drive);
    again.commit().unwrap();
    again.check().unwrap();
    assert_has(&again, (0..10).chain(20..30));
}

#[test]
fn a_device_without_room_is_full_until_it_has_some() {
    let drive = RecordedDrive::limited(300 << 10);
    let clock = Arc::new(HandClock::default());
    let volume = open_with(&drive, VolumeOptions { clock: clock.clone(), ..options() });
    let count = fill(&volume, 0);
    assert!(count > 20);
    volume.commit().unwrap();
    volume.check().unwrap();
    for number in 0..count {
        assert!(volume.remove(&key(number)));
    }
    volume.commit().unwrap();
    volume.commit().unwrap();
    clock.advance(60_000);
    write(&volume, 1000).unwrap();
    volume.commit().unwrap();
    assert_has(&open_with(&drive, options()), [1000]);
}

/// The capacity is more than the file system has: for instance of two folders on one of them.
#[test]
fn blocks_leave_a_device_that_has_less_room_than_the_capacity() {
    let drive = RecordedDrive::limited(300 << 10);
    let clock = Arc::new(HandClock::default());
    let volume = open_with(&drive, VolumeOptions { clock: clock.clone(), ..options() });
    let mut next = 0;
    for round in 0..8 {
        let first = next;
        next += fill(&volume, first);
        assert!(next > first, "round {round}: the folder takes nothing any more");
        // The records of the blocks may have no room either: then these are not kept.
        let _ = volume.commit();
        assert_eq!(volume.is_full(), [false, true]);
        let wanted = volume.wanted_bytes();
        assert!((1..=3 * SEGMENT_BYTES_MIN).contains(&wanted), "{wanted}");
        evict(&volume, wanted);
        for _ in 0..3 {
            let _ = volume.commit();
        }
        assert_eq!(volume.wanted_bytes(), 0, "no more leave than one try wants");
        volume.check().unwrap();
        clock.advance(60_000);
    }
    write(&volume, next).unwrap();
    assert_eq!(volume.commit().unwrap(), [key(next)]);
}

#[test]
fn a_smaller_capacity_holds_for_what_is_new() {
    let drive = RecordedDrive::default();
    let wide = VolumeOptions { capacity_bytes: 4 << 20, ..options() };
    let volume = open_with(&drive, wide);
    (0..200).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    drop(volume);
    let volume = open(&drive);
    assert_has(&volume, 0..200);
    assert_eq!(fill(&volume, 500), 0);
    evict(&volume, 1_400_000);
    for _ in 0..60 {
        volume.collect(90).unwrap();
    }
    volume.check().unwrap();
    assert!(fill(&volume, 500) > 0);
}

/// Blocks of one page: the records of one commit take more than the metadata may have.
#[test]
fn a_commit_of_many_small_blocks_takes_several_steps() {
    let drive = RecordedDrive::default();
    let wide =
        VolumeOptions { capacity_bytes: 32 << 20, segment_bytes: Some(1 << 20), ..options() };
    let volume = open_with(&drive, wide.clone());
    let small: Vec<u64> = (0..5000).map(|number| number * 5 + 1).collect();
    small.iter().for_each(|number| write(&volume, *number).unwrap());
    let committed = volume.commit().unwrap().len();
    assert_eq!(committed, small.len());
    volume.check().unwrap();
    drop(volume);
    assert_eq!(found(&open_with(&drive, wide)).len(), small.len());
}

/// Rounds of writes and removals in a folder of the least capacity.
#[test]
fn metadata_has_room_while_the_folder_has() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    for round in 0..120_u64 {
        let first = round * 60;
        for number in (first..first + 60).map(|number| number * 5 + 2) {
            write(&volume, number).unwrap();
        }
        assert_eq!(volume.commit().unwrap().len(), 60, "round {round}");
        volume.check().unwrap();
        for number in (first..first + 60).filter(|number| number % 7 != 0 || *number > 100) {
            volume.remove(&key(number * 5 + 2));
        }
        assert!(allocated(&drive) <= 1 << 20, "{} bytes", allocated(&drive));
    }
}

/// A segment whose table is not read yet counts with what it has allocated.
#[test]
fn a_folder_that_is_opened_does_not_count_what_was_given_back() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..60).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    (0..60).filter(|number| number % 4 > 0).for_each(|number| _ = volume.remove(&key(number)));
    volume.commit().unwrap();
    volume.commit().unwrap();
    let live = volume.usage().live;
    drop(volume);
    let volume = Volume::open(Box::new(drive.revived()), options(), [8; 16]).unwrap();
    let usage = volume.usage();
    assert!(usage.unknown > 0 && usage.in_use() <= live + SEGMENT_BYTES_MIN, "{usage:?} {live}");
    volume.check().unwrap();
    assert!(!volume.was_scanned());
    volume.scan(|_, _| true).unwrap();
    assert!(volume.was_scanned());
    assert_eq!((volume.usage().live, volume.usage().unknown), (live, 0));
    volume.check().unwrap();
}
