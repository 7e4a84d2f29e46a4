//! Blocks are written, found, read, removed; folders are opened again.

use super::*;

#[test]
fn blocks_are_found_after_their_commit_and_after_a_restart() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    (0..40).for_each(|number| write(&volume, number).unwrap());
    assert_eq!(volume.find(&key(3)), None);
    assert!(matches!(read(&volume, key(3)), Err(ReadMiss::NotFound)));
    assert!(write(&volume, 3).unwrap_err().contains("already"));
    volume.check().unwrap();
    let acknowledged: Vec<_> = volume.commit().unwrap().into_iter().map(number_of).collect();
    assert_eq!(acknowledged, (0..40).collect::<Vec<_>>());
    volume.check().unwrap();
    assert_eq!(volume.find(&key(3)), Some(length(3)));
    assert_has(&volume, 0..40);
    assert!(write(&volume, 3).unwrap_err().contains("already"));
    write(&volume, 50).unwrap();
    drop(volume);
    // Without a commit a block is not there. Everything else is, time and again.
    for round in 1..4 {
        let volume = open(&drive);
        assert_has(&volume, (0..40).chain(100..99 + round));
        assert_eq!(volume.losses(), []);
        write(&volume, 99 + round).unwrap();
        volume.commit().unwrap();
        volume.check().unwrap();
        assert_eq!(volume.store(), [8; 16]);
    }
}

#[test]
fn pages_keep_their_identity_through_a_restart_and_a_move() {
    raw_and_encoded(|| {
        let drive = RecordedDrive::default();
        let volume = open(&drive);
        (0..20).for_each(|number| write(&volume, number).unwrap());
        volume.commit().unwrap();
        let check = |volume: &Arc<Volume>| {
            assert_eq!(volume.pages(&key(4)).unwrap().unwrap(), layers_of(4));
            assert_eq!(volume.pages(&key(0)).unwrap(), None);
            assert!(matches!(volume.pages(&key(99)), Err(ReadMiss::NotFound)));
        };
        check(&volume);
        for number in [0, 1, 2, 3] {
            assert!(volume.remove(&key(number)));
        }
        let before = volume.collect(100).unwrap();
        assert!(before.moved > 0 && before.lost == 0, "{before:?}");
        write(&volume, 0).unwrap();
        volume.commit().unwrap();
        check(&volume);
        check(&open(&drive));
    });
}

#[test]
fn a_reservation_that_is_dropped_leaves_nothing() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    let pages = layers_of(1);
    let spec = |bytes| BlockSpec {
        key: key(1),
        tag: NamespaceTag::default(),
        depth: 0,
        bytes,
        stored_bytes: bytes,
        crc: 0,
        pages: &pages,
    };
    let reservation = volume.reserve(&spec(4096)).unwrap();
    assert_eq!(reservation.key(), key(1));
    assert!(matches!(volume.reserve(&spec(4096)), Err(ReserveError::Exists)));
    volume.check().unwrap();
    drop(reservation);
    volume.check().unwrap();
    let short = volume.reserve(&spec(8192)).unwrap();
    let (tell, told) = bounded(1);
    let done = Box::new(move |_, outcome| tell.send(outcome).unwrap());
    short.write(Buffer::zeroed(4096).unwrap(), done);
    assert!(matches!(told.recv().unwrap(), Err(WriteError::BufferTooShort { .. })));
    for (bytes, why) in
        [(0, "no byte"), (1 << 26, "64 MiB"), (64, "not inside"), (1 << 17, "segment")]
    {
        let error = volume.reserve(&spec(bytes)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let none = BlockSpec { pages: &[], ..spec(4096) };
    assert!(matches!(volume.reserve(&none), Err(ReserveError::Invalid(_))));
    volume.commit().unwrap();
    volume.check().unwrap();
    assert_has(&open(&drive), []);
}

#[test]
fn small_commits_do_not_make_the_journal_long() {
    let drive = RecordedDrive::default();
    let options = VolumeOptions { capacity_bytes: 4 << 20, ..options() };
    let volume = open_with(&drive, options.clone());
    for number in 0..300 {
        write(&volume, number).unwrap();
        volume.commit().unwrap();
        if number >= 50 {
            assert!(volume.remove(&key(number - 50)));
        }
        volume.check().unwrap();
        // Three times the journal that holds all in force, or 32 pages and what one commit adds.
        assert!(volume.usage().metadata < 80 * u64::from(PAGE), "{:?}", volume.usage());
    }
    let journals = drive.names().unwrap().iter().filter(|it| it.starts_with("journal")).count();
    assert_eq!(journals, 1);
    volume.commit().unwrap();
    assert_has(&open_with(&drive, options), 250..300);
}

#[test]
fn endurance_counts_over_restarts() {
    let drive = RecordedDrive::default();
    let clock = Arc::new(HandClock::default());
    let options = VolumeOptions { clock: clock.clone(), ..options() };
    let volume = open_with(&drive, options.clone());
    (0..10).for_each(|number| write(&volume, number).unwrap());
    clock.advance(43_200_000);
    volume.commit().unwrap();
    let payload: u64 = (0..10).map(|number| u64::from(length(number))).sum();
    let first = volume.endurance();
    assert!(first.written_bytes > payload && first.written_bytes < payload + (1 << 17));
    let second = open_with(&drive, options).endurance();
    assert_eq!((second.written_bytes, second.open_ms), (first.written_bytes, 43_200_000));
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let expected = first.written_bytes as f64 / f64::from(1 << 20) * 2.0;
    assert!((second.drive_writes_per_day - expected).abs() < 1e-6);
}

#[test]
fn a_folder_belongs_to_one_host() {
    let drive = RecordedDrive::default();
    let volume = open(&drive);
    write(&volume, 1).unwrap();
    volume.commit().unwrap();
    let other = VolumeOptions { host: [4; 16], ..options() };
    let refused = Volume::open(Box::new(drive.clone()), other.clone(), [8; 16]).unwrap_err();
    assert!(matches!(refused, OpenVolumeError::OtherHost));
    let taken = open_with(&drive, VolumeOptions { take_over: true, ..other.clone() });
    assert_has(&taken, [1]);
    write(&taken, 2).unwrap();
    taken.commit().unwrap();
    assert_has(&open_with(&drive, other), [1, 2]);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (capacity_bytes, segment_bytes) in
        [(1 << 19, None), (1 << 20, Some(1 << 19)), (1 << 20, Some(4096)), (1 << 20, Some(70_000))]
    {
        let options = VolumeOptions { capacity_bytes, segment_bytes, ..options() };
        let refused =
            Volume::open(Box::new(RecordedDrive::default()), options, [0; 16]).unwrap_err();
        assert!(matches!(refused, OpenVolumeError::Sizes(_)), "{refused}");
    }
}

/// More than the index numbers: such room would never be used, and nothing would leave for it.
#[test]
fn a_folder_of_short_segments_does_not_take_more_than_it_can_use() {
    let drive = RecordedDrive::default();
    let small = open(&drive);
    write(&small, 1).unwrap();
    small.commit().unwrap();
    drop(small);
    let most = SEGMENT_BYTES_MIN << 17;
    let opened = |capacity_bytes| {
        let options = VolumeOptions { capacity_bytes, segment_bytes: None, ..options() };
        Volume::open(Box::new(drive.clone()), options, [8; 16])
    };
    let refused = opened(most + 4096).unwrap_err().to_string();
    assert!(refused.contains("begin a new folder") && refused.contains("8589934592"), "{refused}");
    drop(opened(most).unwrap());
    assert_has(&open(&drive), [1]);
    // A new one of any length: nothing is made before it is refused.
    let new = RecordedDrive::default();
    let options = VolumeOptions { capacity_bytes: 1 << 60, segment_bytes: None, ..options() };
    let refused = Volume::open(Box::new(new.clone()), options, [8; 16]).unwrap_err().to_string();
    assert!(refused.contains("several folders"), "{refused}");
    assert_eq!(new.names().unwrap(), [""; 0]);
}

#[test]
fn a_folder_with_longer_segments_needs_a_larger_capacity() {
    let drive = RecordedDrive::default();
    open_with(
        &drive,
        VolumeOptions { segment_bytes: Some(1 << 20), capacity_bytes: 8 << 20, ..options() },
    );
    let refused = Volume::open(Box::new(drive), options(), [8; 16]).unwrap_err();
    assert!(refused.to_string().contains("four times"), "{refused}");
}

#[test]
fn a_block_written_before_the_scan_finds_it_is_kept_once() {
    for fails in [false, true] {
        let drive = RecordedDrive::default();
        let volume = open(&drive);
        (0..30).for_each(|number| write(&volume, number).unwrap());
        volume.commit().unwrap();
        volume.commit().unwrap();
        drop(volume);
        let faults = crate::io::faulty::Faults::default();
        let faulty = crate::io::faulty::FaultyDrive::new(drive.clone(), faults.clone());
        let volume = Volume::open(Box::new(faulty), options(), [8; 16]).unwrap();
        assert!(!volume.is_scanned() && volume.find(&key(1)).is_none());
        write(&volume, 1).unwrap();
        volume.scan(|_, _| true).unwrap();
        assert!(volume.is_scanned());
        if fails {
            let fault = crate::io::faulty::Fault::Error(libc::EIO);
            faults.plan(Some(crate::io::faulty::Call::Sync), 0, 1, fault);
        }
        assert_eq!(volume.commit().is_err(), fails);
        volume.check().unwrap();
        assert_has(&volume, 0..30);
        volume.commit().unwrap();
        volume.check().unwrap();
        assert_has(&open(&drive), 0..30);
    }
}

#[test]
fn the_room_of_a_folder_is_known_before_it_is_made() {
    for capacity_bytes in [1 << 20, (5 << 20) + 4096, 77 << 20] {
        let options = VolumeOptions { capacity_bytes, segment_bytes: None, ..options() };
        let volume = open_with(&RecordedDrive::default(), options);
        assert_eq!(room_bytes(capacity_bytes), volume.usage().room());
    }
}
