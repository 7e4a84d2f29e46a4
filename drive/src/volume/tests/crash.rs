//! A crash at every step, with every subset of what was not durable, within bounds: nothing that was
//! acknowledged is lost, and no block has wrong bytes.

use std::collections::BTreeSet;

use super::*;
use crate::format::CarriedOut;
use crate::io::recorded::CrashImage;

/// What a program was told, and what it asked for.
#[derive(Clone, Debug, Default)]
struct Told {
    acknowledged: BTreeSet<u64>,
    /// Removed or evicted: these may be there or not.
    removed: BTreeSet<u64>,
    /// The blocks that each clear removed, and that were not written again.
    cleared: Vec<BTreeSet<u64>>,
    /// How many clears were acknowledged.
    carried_out: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u64),
    Commit,
    Remove(u64),
    Collect,
    Clear,
}

/// Some of everything: segments fill, are sealed, emptied, moved, dropped; journals begin anew.
fn script() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..8_u64 {
        steps.extend((round * 6..round * 6 + 6).map(Step::Write));
        steps.push(Step::Commit);
        if round > 1 {
            steps.extend([1, 2, 4].map(|at| Step::Remove(round * 6 - 12 + at)));
        }
        if round % 2 == 1 {
            steps.push(Step::Collect);
        }
        if round == 4 {
            steps.extend([Step::Write(999), Step::Clear]);
        }
    }
    steps
}

fn run(volume: &Arc<Volume>, steps: &[Step], told: &mut Told) {
    for step in steps {
        match *step {
            Step::Write(number) => {
                told.cleared.iter_mut().for_each(|cleared| _ = cleared.remove(&number));
                let _ = write(volume, number);
            }
            Step::Commit => _ = commit(volume, told),
            Step::Remove(number) => {
                if volume.remove(&key(number)) {
                    told.removed.insert(number);
                }
            }
            Step::Collect => {
                // Its commits may have acknowledged what was written before.
                let _ = volume.collect(60);
            }
            Step::Clear => {
                commit(volume, told);
                let numbers = found(volume);
                let keys: Vec<_> = numbers.iter().copied().map(key).collect();
                volume.remove_all(&keys);
                told.removed.extend(&numbers);
                told.cleared.push(numbers.into_iter().collect());
                let mut carried_out = CarriedOut { region: [1, 2], ..CarriedOut::default() };
                carried_out.numbers[3] = told.cleared.len() as u64;
                volume.carry_out(carried_out);
                if commit(volume, told) {
                    told.carried_out = carried_out.numbers[3];
                }
            }
        }
        volume.check().unwrap();
    }
}

fn commit(volume: &Volume, told: &mut Told) -> bool {
    let Ok(keys) = volume.commit() else { return false };
    for number in keys.into_iter().map(number_of) {
        told.acknowledged.insert(number);
        told.removed.remove(&number);
    }
    true
}

/// Opens a crash image, and checks what it has.
#[track_caller]
fn check(image: &CrashImage, told: &Told) -> (RecordedDrive, Arc<Volume>) {
    let drive = RecordedDrive::after(image);
    let volume = open(&drive);
    assert_eq!(volume.losses(), [], "a crash damages nothing");
    let found = found(&volume);
    for number in &found {
        match read(&volume, key(*number)) {
            Ok(bytes) => assert_eq!(bytes, payload(*number), "block {number} has other bytes"),
            Err(ReadMiss::Damaged) if told.removed.contains(number) => {}
            Err(miss) => panic!("block {number}: {miss}"),
        }
    }
    // DRIVE-C1.
    let carried_out = volume.carried_out().numbers[3];
    assert!(carried_out >= told.carried_out, "clear {} was acknowledged", told.carried_out);
    for cleared in told.cleared.iter().take(usize::try_from(carried_out).unwrap()) {
        let back: Vec<_> = found.iter().filter(|number| cleared.contains(*number)).collect();
        assert!(back.is_empty(), "{back:?} were cleared and are back");
    }
    let lost: Vec<_> = told
        .acknowledged
        .iter()
        .filter(|number| !told.removed.contains(*number) && found.binary_search(number).is_err())
        .collect();
    assert!(lost.is_empty(), "{lost:?} were acknowledged and are lost");
    volume.check().unwrap();
    (drive, volume)
}

/// Subsets of `count` changes: all of them when there are few, otherwise none, all, each alone, all
/// but each, and some by chance.
fn subsets(count: usize, random: &mut u64) -> Vec<Box<dyn Fn(usize) -> bool>> {
    if count <= 4 {
        return (0..1_usize << count)
            .map(|set| Box::new(move |at: usize| set >> at & 1 == 1) as Box<dyn Fn(usize) -> bool>)
            .collect();
    }
    let mut subsets: Vec<Box<dyn Fn(usize) -> bool>> =
        vec![Box::new(|_| false), Box::new(|_| true)];
    for one in 0..count.min(5) {
        subsets.push(Box::new(move |at| at == one));
        subsets.push(Box::new(move |at| at != one));
    }
    for _ in 0..4 {
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = *random;
        subsets
            .push(Box::new(move |at| bits.rotate_left(u32::try_from(at % 61).unwrap()) & 4 == 4));
    }
    subsets
}

#[test]
fn nothing_acknowledged_is_lost_at_any_step() {
    raw_and_encoded(|| {
        let steps = script();
        let total = {
            let drive = RecordedDrive::default();
            run(&open(&drive), &steps, &mut Told::default());
            drive.steps()
        };
        assert!(total > 200, "{total} steps");
        let (mut random, mut images) = (1, 0);
        for last in 0..=total {
            let drive = RecordedDrive::default();
            drive.stop_after(last);
            let mut told = Told::default();
            if let Ok(volume) = Volume::open(Box::new(drive.clone()), options(), [8; 16]) {
                run(&volume, &steps, &mut told);
            }
            for keeps in subsets(drive.pending(), &mut random) {
                check(&drive.crash(keeps), &told);
                images += 1;
            }
        }
        assert!(images > 2000, "{images} images");
    });
}

#[test]
fn nothing_acknowledged_is_lost_in_a_crash_after_a_crash() {
    raw_and_encoded(|| {
        let steps = script();
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..150 {
            let mut drive = RecordedDrive::default();
            let mut told = Told::default();
            for life in 0..4_u64 {
                drive.stop_after(next(120));
                if let Ok(volume) = Volume::open(Box::new(drive.clone()), options(), [8; 16]) {
                    let _ = volume.scan(|_, _| true);
                    let from = usize::try_from(next(40)).unwrap();
                    let shifted: Vec<_> = steps[from..]
                        .iter()
                        .map(|step| match *step {
                            Step::Write(number) => Step::Write(number + life * 1000),
                            Step::Remove(number) if number % 2 == 0 => {
                                Step::Remove(number + life * 1000)
                            }
                            other => other,
                        })
                        .collect();
                    run(&volume, &shifted, &mut told);
                }
                // A process may die and the machine live: then everything that was done is seen, and
                // what was not durable still is not.
                if next(3) == 0 {
                    let again = drive.revived();
                    check(&again.crash(|_| true), &told);
                    drive = again;
                } else {
                    let bits = next(1 << 31);
                    let kept = |at: usize| bits >> (at % 31) & 1 == 1;
                    drive = check(&drive.crash(kept), &told).0.revived();
                }
            }
        }
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_the_machine_dies_after_the_process() {
    raw_and_encoded(|| {
        let steps = script();
        let (mut random, mut images) = (3, 0);
        for last in (100..310).step_by(2) {
            let drive = RecordedDrive::default();
            drive.stop_after(last);
            let mut told = Told::default();
            let volume = Volume::open(Box::new(drive.clone()), options(), [8; 16]).unwrap();
            run(&volume, &steps, &mut told);
            // What the dead process had not made durable is seen, and opening removes files.
            let revived = drive.revived();
            open(&revived);
            for keeps in subsets(revived.pending(), &mut random) {
                check(&revived.crash(keeps), &told);
                images += 1;
            }
        }
        assert!(images > 200, "{images} images");
    });
}
