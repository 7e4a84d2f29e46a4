//! Devices that fail: blocks are misses, the device is marked and tried again, and nothing that was
//! acknowledged is lost.

use super::*;
use crate::io::faulty::{Call, Fault, Faults, FaultyDrive};

struct Rig {
    drive: RecordedDrive,
    faults: Faults,
    clock: Arc<HandClock>,
    volume: Arc<Volume>,
}

fn rig() -> Rig {
    let (drive, faults) = (RecordedDrive::default(), Faults::default());
    let clock = Arc::new(HandClock::default());
    let options = VolumeOptions { clock: clock.clone(), ..options() };
    let faulty = FaultyDrive::new(drive.clone(), faults.clone());
    let volume = Volume::open(Box::new(faulty), options, [8; 16]).unwrap();
    Rig { drive, faults, clock, volume }
}

#[test]
fn each_call_may_fail_and_nothing_acknowledged_is_lost() {
    raw_and_encoded(|| {
        let calls = {
            let Rig { faults, volume, .. } = rig();
            let before = faults.calls();
            work(&volume, &mut Vec::new());
            faults.calls() - before
        };
        assert!(calls > 100, "{calls}");
        for fault in [Fault::Error(libc::EIO), Fault::Half(libc::EIO), Fault::Error(libc::ENOSPC)] {
            for skip in (0..calls).step_by(if fault == Fault::Error(libc::EIO) { 1 } else { 3 }) {
                let Rig { drive, faults, clock, volume } = rig();
                faults.plan(None, skip, 1, fault);
                let mut acknowledged = Vec::new();
                work(&volume, &mut acknowledged);
                volume.check().unwrap();
                // It works again, after a while.
                clock.advance(120_000);
                write(&volume, 900).unwrap_or_else(|error| panic!("{fault:?} at {skip}: {error}"));
                acknowledged.extend(volume.commit().unwrap().into_iter().map(number_of));
                volume.check().unwrap();
                for number in &acknowledged {
                    let bytes = read(&volume, key(*number));
                    assert_eq!(bytes.unwrap(), payload(*number), "{fault:?} at {skip}");
                }
                drop(volume);
                let again = open(&drive);
                assert_eq!(again.losses(), []);
                let found = found(&again);
                assert!(
                    acknowledged.iter().all(|number| found.contains(number)),
                    "{fault:?} at {skip}"
                );
                for number in found {
                    assert_eq!(read(&again, key(number)).unwrap(), payload(number));
                }
            }
        }
    });
}

/// Writes, commits and collects, whatever fails.
fn work(volume: &Arc<Volume>, acknowledged: &mut Vec<u64>) {
    for round in 0..4_u64 {
        for number in round * 8..round * 8 + 8 {
            let _ = write(volume, number);
        }
        acknowledged.extend(volume.commit().unwrap_or_default().into_iter().map(number_of));
    }
    let _ = volume.collect(100);
}

#[test]
fn a_drive_that_loses_writes_or_flips_bits_returns_no_wrong_byte() {
    raw_and_encoded(|| {
        for (call, fault) in [
            (Call::WritePayload, Fault::Lost),
            (Call::ReadPayload, Fault::FlippedBit),
            (Call::Read, Fault::FlippedBit),
            (Call::Write, Fault::Lost),
        ] {
            for skip in 0..12 {
                let Rig { drive, faults, volume, .. } = rig();
                faults.plan(Some(call), skip, 2, fault);
                let mut acknowledged = Vec::new();
                work(&volume, &mut acknowledged);
                let check = |volume: &Arc<Volume>| {
                    for number in found(volume) {
                        match read(volume, key(number)) {
                            Ok(bytes) => assert_eq!(bytes, payload(number)),
                            Err(miss) => assert!(matches!(miss, ReadMiss::Damaged), "{miss}"),
                        }
                    }
                    volume.check().unwrap();
                };
                check(&volume);
                drop(volume);
                faults.clear();
                // A manifest that was lost is seen; everything else is lost as far as it goes.
                if let Ok(again) = Volume::open(Box::new(drive), options(), [8; 16]) {
                    again.scan(|_, _| true).unwrap();
                    check(&again);
                }
            }
        }
    });
}

#[test]
fn a_vanished_device_is_marked_and_comes_back() {
    let Rig { faults, clock, volume, .. } = rig();
    (0..8).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    faults.vanish();
    assert!(matches!(read(&volume, key(1)), Err(ReadMiss::System(_))));
    // No call reaches the device before its time.
    let calls = faults.calls();
    assert!(matches!(read(&volume, key(1)), Err(ReadMiss::Marked)));
    assert_eq!(faults.calls(), calls);
    assert!(write(&volume, 50).is_err());
    assert!(write(&volume, 51).unwrap_err().contains("failed before"));
    assert_eq!(volume.failures().map(|(_, marked)| marked), [true, true]);
    clock.advance(1_000);
    assert!(matches!(read(&volume, key(1)), Err(ReadMiss::System(_))));
    faults.clear();
    clock.advance(1_000);
    assert!(matches!(read(&volume, key(1)), Err(ReadMiss::Marked)), "the wait is longer now");
    clock.advance(1_000);
    assert_eq!(read(&volume, key(1)).unwrap(), payload(1));
    write(&volume, 50).unwrap();
    assert_eq!(volume.commit().unwrap(), [key(50)]);
    assert_eq!(volume.failures().map(|(_, marked)| marked), [false, false]);
    volume.check().unwrap();
}

#[test]
fn a_slow_device_is_marked_and_late_reads_give_their_buffer_back() {
    let Rig { faults, volume, clock, .. } = rig();
    write(&volume, 1).unwrap();
    volume.commit().unwrap();
    faults.plan(Some(Call::ReadPayload), 0, 3, Fault::Delay);
    let (tell, told) = bounded(3);
    for _ in 0..3 {
        let tell = tell.clone();
        let done = Box::new(move |unverified: Unverified| tell.send(unverified).unwrap());
        volume.read(key(1), Buffer::zeroed(2 * PAGE as usize).unwrap(), done).unwrap();
        assert!(told.try_recv().is_err());
        volume.read_was_late();
    }
    assert!(matches!(read(&volume, key(1)), Err(ReadMiss::Marked)));
    // Meanwhile blocks are written.
    write(&volume, 2).unwrap();
    volume.commit().unwrap();
    assert_eq!(faults.release(), 3);
    let (buffer, bytes) = told.recv().unwrap().verify().unwrap();
    assert_eq!(buffer.bytes().unwrap()[..bytes as usize], payload(1));
    clock.advance(1_000);
    assert_eq!(read(&volume, key(1)).unwrap(), payload(1));
}

#[test]
fn a_block_that_is_removed_while_it_is_read_is_a_miss_and_no_damage() {
    let Rig { faults, volume, .. } = rig();
    (0..4).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    faults.plan(Some(Call::ReadPayload), 0, 1, Fault::FlippedBit);
    faults.plan(Some(Call::ReadPayload), 1, 1, Fault::Error(libc::EIO));
    for number in [1, 2] {
        let (tell, told) = bounded(1);
        let done = Box::new(move |unverified| tell.send(unverified).unwrap());
        volume.read(key(number), Buffer::zeroed(4 * PAGE as usize).unwrap(), done).unwrap();
        assert!(volume.remove(&key(number)));
        let (_, miss) = told.recv().unwrap().verify().unwrap_err();
        assert!(matches!(miss, ReadMiss::Removed), "{miss}");
    }
    assert_eq!((volume.damaged(), volume.failures()[0].0), (0, 0));
}

#[test]
fn a_write_that_fails_in_a_new_segment_leaves_nothing_to_miss() {
    let Rig { drive, faults, volume, clock } = rig();
    faults.plan(Some(Call::WritePayload), 0, 1, Fault::Error(libc::EIO));
    assert!(write(&volume, 1).is_err());
    volume.commit().unwrap();
    clock.advance(60_000);
    let again = open(&RecordedDrive::after(&drive.crash(|_| false)));
    assert_eq!(again.losses(), []);
    write(&volume, 1).unwrap();
    volume.commit().unwrap();
    assert_has(&open(&RecordedDrive::after(&drive.crash(|_| false))), [1]);
}

/// DRIVE-D7.
#[test]
fn a_write_that_was_given_up_changes_nothing_when_it_ends() {
    let Rig { drive, faults, clock, volume } = rig();
    write(&volume, 1).unwrap();
    faults.plan(Some(Call::WritePayload), 0, 1, Fault::Delay);
    let (tell, told) = bounded(1);
    let done = Box::new(move |_, outcome: Result<(), WriteError>| tell.send(outcome).unwrap());
    let ticket = begin(&volume, 2, done).unwrap();
    assert!(ticket.give_up() && !ticket.give_up());
    assert_eq!(volume.failures()[1], (1, true));
    clock.advance(60_000);
    // The device owes an end: it gets nothing else, and what waits for it waits on.
    let calls = faults.calls();
    assert!(write(&volume, 3).unwrap_err().contains("failed before"));
    assert!(matches!(volume.commit(), Err(CommitError::Silent)));
    assert!(matches!(volume.collect(100), Err(CommitError::Silent)));
    assert_eq!((faults.calls(), volume.is_silent()), (calls, true));
    assert_eq!(faults.release(), 1);
    assert!(matches!(told.recv().unwrap(), Err(WriteError::GivenUp)));
    assert_eq!(volume.commit().unwrap(), [key(1)]);
    volume.check().unwrap();
    write(&volume, 2).unwrap();
    assert_eq!(volume.commit().unwrap(), [key(2)]);
    let again = open(&RecordedDrive::after(&drive.crash(|_| false)));
    assert_has(&again, [1, 2]);
    again.check().unwrap();
    // One that has ended is kept.
    let (tell, told) = bounded(1);
    let done = Box::new(move |_, outcome: Result<(), WriteError>| tell.send(outcome).unwrap());
    let ticket = begin(&volume, 4, done).unwrap();
    told.recv().unwrap().unwrap();
    assert!(!ticket.give_up() && !volume.is_silent());
    assert_eq!(volume.commit().unwrap(), [key(4)]);
}

fn files(drive: &RecordedDrive, part: &str) -> usize {
    drive.names().unwrap().iter().filter(|name| name.contains(part)).count()
}

#[test]
fn failed_commits_leave_no_journal_behind() {
    let Rig { drive, faults, clock, volume } = rig();
    for number in 0..12 {
        write(&volume, number).unwrap();
        if number % 2 == 1 {
            faults.plan(Some(Call::Sync), number % 3, 1, Fault::Error(libc::EIO));
        }
        let _ = volume.commit();
        clock.advance(120_000);
        faults.clear();
    }
    write(&volume, 100).unwrap();
    volume.commit().unwrap();
    assert_eq!(files(&drive, "journal"), 1);
    assert_eq!(open(&drive).losses(), []);
}

/// DRIVE-G2.
#[test]
fn a_segment_that_cannot_be_removed_counts_until_it_is() {
    let Rig { drive, faults, clock, volume } = rig();
    (0..40).for_each(|number| write(&volume, number).unwrap());
    volume.commit().unwrap();
    faults.plan(Some(Call::Rename), 0, u64::MAX, Fault::Error(libc::EBUSY));
    faults.plan(Some(Call::Punch), 0, u64::MAX, Fault::Error(libc::EBUSY));
    (0..40).for_each(|number| assert!(volume.remove(&key(number))));
    // The rename of the manifest is a call of the same kind: this commit fails.
    assert!(volume.commit().is_err());
    faults.clear();
    clock.advance(120_000);
    // One such call is for the manifest, all later ones are removals.
    faults.plan(Some(Call::Rename), 1, u64::MAX, Fault::Error(libc::EBUSY));
    volume.commit().unwrap();
    assert!(files(&drive, ".data") > 3);
    let names = drive.names().unwrap().into_iter().filter(|name| name.contains(".data"));
    let allocated = names.map(|name| {
        drive.allocated(drive.open(&name, crate::io::Content::Payload).unwrap()).unwrap()
    });
    let (usage, allocated) = (volume.usage(), allocated.sum::<u64>());
    assert!(allocated > 0 && usage.garbage == allocated, "{allocated}: {usage:?}");
    volume.check().unwrap();
    faults.clear();
    volume.commit().unwrap();
    assert_eq!((files(&drive, ".data"), volume.usage().garbage), (0, 0));
    volume.check().unwrap();
}

/// A page of metrics is shown while a device hangs.
#[test]
fn figures_do_not_wait_for_a_commit() {
    let Rig { faults, volume, .. } = rig();
    write(&volume, 1).unwrap();
    volume.commit().unwrap();
    write(&volume, 2).unwrap();
    faults.plan(Some(Call::Sync), 0, 1, Fault::Delay);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| volume.commit());
        faults.wait_for_delay();
        let usage = volume.usage();
        assert_eq!((usage.blocks, volume.carried_out()), (1, crate::format::CarriedOut::default()));
        assert!(volume.endurance().written_bytes > 0);
        assert_eq!((volume.store(), volume.moves().written.blocks), ([8; 16], 1));
        assert!(!committing.is_finished());
        faults.release();
        assert_eq!(committing.join().unwrap().unwrap(), [key(2)]);
    });
}
