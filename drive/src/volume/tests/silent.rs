//! A device that does not end a call for metadata (DRIVE-I6): the folder fails in time, and goes on
//! when the call has ended after all.

use super::*;
use crate::io::faulty::{Call, Fault, Faults, FaultyDrive};
use crate::io::{BoundedDrive, CallThread};

const CALLS: [Call; 7] =
    [Call::Ask, Call::Create, Call::Open, Call::Read, Call::Write, Call::Sync, Call::Rename];

struct Rig {
    drive: RecordedDrive,
    faults: Faults,
    calls: Arc<CallThread>,
    clock: Arc<HandClock>,
    volume: Arc<Volume>,
}

fn rig() -> Rig {
    let (drive, faults) = (RecordedDrive::default(), Faults::default());
    let clock = Arc::new(HandClock::default());
    let options = VolumeOptions { clock: clock.clone(), ..options() };
    let calls = Arc::new(CallThread::start(faults.over()).unwrap());
    let faulty = FaultyDrive::new(drive.clone(), faults.clone());
    let open = || Ok::<Arc<dyn Drive>, ()>(Arc::new(faulty));
    let bounded = BoundedDrive::open(Arc::clone(&calls), open).unwrap().unwrap();
    let volume = Volume::open(Box::new(bounded), options, [8; 16]).unwrap();
    Rig { drive, faults, calls, clock, volume }
}

/// Writes and commits, whatever fails.
fn work(volume: &Arc<Volume>, acknowledged: &mut Vec<u64>) {
    for round in 0..3_u64 {
        for number in round * 8..round * 8 + 8 {
            let _ = write(volume, number);
        }
        acknowledged.extend(volume.commit().unwrap_or_default().into_iter().map(number_of));
        assert_eq!(volume.remove(&key(round * 8)), acknowledged.contains(&(round * 8)));
        acknowledged.retain(|number| *number != round * 8);
    }
    let _ = volume.collect(100);
}

/// Waits until the call that was delayed has ended.
fn wait_for_end(calls: &CallThread) {
    while calls.is_silent() {
        std::thread::yield_now();
    }
}

#[test]
fn each_call_may_never_end_or_end_too_late() {
    let mut delayed = 0;
    for call in CALLS {
        for (skip, ends_early) in (0..40).flat_map(|skip| [(skip, true), (skip, false)]) {
            let Rig { drive, faults, calls, clock, volume } = rig();
            faults.plan(Some(call), skip, 1, Fault::Delay);
            let mut acknowledged = Vec::new();
            let worker = std::thread::spawn({
                let volume = Arc::clone(&volume);
                move || {
                    work(&volume, &mut acknowledged);
                    acknowledged
                }
            });
            let reached = loop {
                if calls.is_silent() {
                    break true;
                }
                if faults.is_delaying() {
                    faults.time_is_over();
                }
                if worker.is_finished() {
                    break false;
                }
                std::thread::yield_now();
            };
            if ends_early {
                faults.release();
            }
            let mut acknowledged = worker.join().unwrap();
            if !reached {
                break;
            }
            delayed += 1;
            volume.check().unwrap();
            for number in &acknowledged {
                let outcome = read(&volume, key(*number));
                assert_eq!(outcome.unwrap(), payload(*number), "{call:?} {skip}");
            }
            if !ends_early {
                faults.release();
            }
            wait_for_end(&calls);
            clock.advance(120_000);
            write(&volume, 900).unwrap_or_else(|error| panic!("{call:?} {skip}: {error}"));
            acknowledged.extend(volume.commit().unwrap().into_iter().map(number_of));
            volume.check().unwrap();
            drop(volume);
            let again = open(&drive);
            assert_eq!(again.losses(), []);
            let found = found(&again);
            assert!(acknowledged.iter().all(|number| found.contains(number)), "{call:?} {skip}");
            for number in found {
                assert_eq!(read(&again, key(number)).unwrap(), payload(number));
            }
        }
    }
    assert!(delayed > 40, "{delayed}");
}
