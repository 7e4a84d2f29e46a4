//! Calls that do not end.

use super::*;
use crate::io::faulty::{Call, Fault, Faults, FaultyDrive};
use crate::io::recorded::RecordedDrive;

#[test]
fn a_silent_device_fails_at_once_and_undoes_what_it_makes_too_late() {
    let faults = Faults::default();
    let calls = Arc::new(CallThread::start(faults.over()).unwrap());
    let recorded = RecordedDrive::default();
    let faulty = FaultyDrive::new(recorded.clone(), faults.clone());
    let open = || Ok::<Arc<dyn Drive>, ()>(Arc::new(faulty));
    let drive = BoundedDrive::open(Arc::clone(&calls), open).unwrap().unwrap();
    let kept = drive.create("kept", Content::Records, 0).unwrap();

    faults.plan(Some(Call::Create), 0, 1, Fault::Delay);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| drive.create("late", Content::Records, 0));
        faults.wait_for_delay();
        // This one waits behind it, and never begins.
        let renamed = scope.spawn(|| drive.rename("kept", "other"));
        while calls.jobs.is_empty() {
            std::thread::yield_now();
        }
        while !(made.is_finished() && renamed.is_finished()) {
            faults.time_is_over();
            std::thread::yield_now();
        }
        let silent = std::io::ErrorKind::TimedOut;
        assert_eq!(made.join().unwrap().unwrap_err().kind(), silent);
        assert_eq!(renamed.join().unwrap().unwrap_err().kind(), silent);
        // Nobody says that time is over for these.
        let before = faults.calls();
        assert_eq!(drive.sync(kept).unwrap_err().kind(), silent);
        assert_eq!(drive.room().unwrap_err().kind(), silent);
        assert_eq!(faults.calls(), before);
    });
    faults.release();
    while calls.call(|| (), drop).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(drive.names().unwrap(), ["kept"]);
    drive.sync(kept).unwrap();
    drop(drive);
    assert_eq!(recorded.names().unwrap(), ["kept"]);
}
