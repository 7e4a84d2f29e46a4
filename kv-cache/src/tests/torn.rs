//! Lines that are torn for a moment, and such that are damaged for good.

use cxl_shm::verify::BackendOf;
use cxl_shm::verify::simulated::{Access, Interposed, Interposer};

use super::*;

/// Lets a host find a line torn, until it has refreshed it some more times.
#[derive(Clone, Debug)]
struct Tearing {
    rack: SimulatedRack,
    torn: Arc<Mutex<Option<Torn>>>,
}

#[derive(Clone, Copy, Debug)]
struct Torn {
    handle_line: LineRange,
    refreshes: u32,
}

impl Tearing {
    /// From now on, until the line was refreshed `refreshes` times.
    fn tear(&self, handle_line: LineRange, refreshes: u32) {
        self.flip(handle_line);
        *self.torn.lock().unwrap() = Some(Torn { handle_line, refreshes });
    }

    /// The writer of a torn line comes to its end.
    fn mend(&self) {
        if let Some(Torn { handle_line, .. }) = self.torn.lock().unwrap().take() {
            self.flip(handle_line);
        }
    }

    /// As if one of its words were of the line before.
    fn flip(&self, line: LineRange) {
        self.rack.flip_bit(line.start().bytes() + 36, 5);
    }

    fn is_whole(&self) -> bool {
        self.torn.lock().unwrap().is_none()
    }
}

impl Interposer for Tearing {
    fn before(&self, access: Access) {
        let mut torn = self.torn.lock().unwrap();
        if let Some(Torn { handle_line, refreshes }) = &mut *torn
            && access.invalidates(handle_line.start())
        {
            *refreshes -= 1;
            if *refreshes == 0 {
                self.flip(*handle_line);
                *torn = None;
            }
        }
    }
}

type TearingBackend = BackendOf<Interposed<Tearing>, SimulatedHostMemory, Deaths>;
type TearingCache<'m> = Cache<'m, TearingBackend>;

/// A node that publishes block 1, and another one to whom its line looks torn when `tear` says so.
fn with_a_torn_line(
    rack: SimulatedRack,
    test: impl FnOnce(&TestCache<'_>, &TearingCache<'_>, &ServingClock<'_>, Handle, LineRange),
) {
    let rig = Rig::on(rack, 2, 32, 8);
    let first = rig.join(0);
    let tearing = Tearing { rack: rig.rack.clone(), torn: Arc::default() };
    let fabric = Interposed::new(rig.rack.host(1), tearing);
    let clock = rig.serve(&[&first]);
    let second: Member<TearingBackend> = Member::join(
        fabric,
        rig.rack.host_memory(1, HostTier::words_of(&rig.geometry)),
        1,
        &HostIdentity::simulated(1),
        ProcessIdentity::new(99, 1),
        rig.deaths.clone(),
        &rig.rack.clock(1),
    )
    .unwrap();
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    let handle = publish(&a, &clock, 1);
    b.sync();
    let line = a.segment(handle.owner()).unwrap().range(handle.slot());
    test(&a, &b, &clock, handle, line);
}

fn quiet() -> SimulatedRack {
    SimulatedRack::sticky(2, REGION_BYTES)
}

fn is_found(cache: &TearingCache<'_>, handle: Handle) -> bool {
    cache.lookup(&[key(1)]).blocks().first().map(|block| block.handle) == Some(handle)
}

#[test]
fn both_looks_of_a_fetch_wait_for_a_line_that_is_being_written() {
    fetched_while_it_is_written(quiet());
}

/// Also run with flushes and fences removed.
pub(super) fn fetched_while_it_is_written(rack: SimulatedRack) {
    with_a_torn_line(rack, |_, b, _, handle, line| {
        b.member().fabric().interposer().tear(line, 5);
        let ticket = b.open(&[wanted(1, handle)]).remove(0).unwrap();
        assert!(b.member().fabric().interposer().is_whole());
        b.member().fabric().interposer().tear(line, 5);
        assert_eq!(b.close(&[(ticket, None)]), [Ok(())]);
        assert!(b.member().fabric().interposer().is_whole() && is_found(b, handle));
    });
}

#[test]
fn a_fetch_does_not_wait_forever() {
    with_a_torn_line(quiet(), |_, b, _, handle, line| {
        let ticket = b.open(&[wanted(1, handle)]).remove(0).unwrap();
        b.member().fabric().interposer().tear(line, u32::MAX);
        assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);
        assert_eq!(b.open(&[wanted(1, handle)]), [Err(Miss::Torn)]);
        assert!(!is_found(b, handle));
    });
}

#[test]
fn a_hold_waits_for_a_line_that_is_being_written_and_no_longer() {
    with_a_torn_line(quiet(), |_, b, clock, handle, line| {
        b.member().fabric().interposer().tear(line, 100);
        let held = b.hold(clock, &[wanted(1, handle)], HOLD_MS).remove(0).unwrap();
        assert!(b.member().fabric().interposer().is_whole());
        b.release(clock, vec![held]);
        b.member().fabric().interposer().tear(line, u32::MAX);
        let error = b.hold(clock, &[wanted(1, handle)], HOLD_MS).remove(0).unwrap_err();
        assert_eq!(error, HoldError::Miss(Miss::Torn));
        assert!(!is_found(b, handle));
    });
}

#[test]
fn a_line_that_is_being_written_while_a_scan_comes_by_is_found_soon() {
    scanned_while_it_is_written(quiet());
}

/// Also run with flushes and fences removed.
pub(super) fn scanned_while_it_is_written(rack: SimulatedRack) {
    with_a_torn_line(rack, |a, b, clock, handle, line| {
        // More than a ring: the segment is scanned.
        for number in 2..=10 {
            publish(a, clock, number);
        }
        b.member().fabric().interposer().tear(line, 5);
        assert!(!is_found(b, handle), "torn at the moment");
        assert!(is_found_soon(b, handle));
        assert_eq!(b.process_state().metrics().rescans, 1);
        for number in 11..=19 {
            publish(a, clock, number);
        }
        b.member().fabric().interposer().tear(line, u32::MAX);
        assert!(!is_found(b, handle), "damaged for good");
        assert_eq!(b.process_state().metrics().rescans, 2);
        // Not for good: its writer only waited for a processor. No log tells of that.
        b.member().fabric().interposer().mend();
        assert!(is_found_soon(b, handle));
        assert_eq!(b.process_state().metrics().rescans, 2);
    });
}

/// Whether one of the next lookups finds the block.
fn is_found_soon(cache: &TearingCache<'_>, handle: Handle) -> bool {
    (0..4).any(|_| is_found(cache, handle))
}

#[test]
fn a_torn_line_of_another_node_is_missed_for_a_while_only() {
    for holds in [false, true] {
        with_a_torn_line(quiet(), |_, b, clock, handle, line| {
            b.member().fabric().interposer().tear(line, u32::MAX);
            if holds {
                let held = b.hold(clock, &[wanted(1, handle)], HOLD_MS).remove(0);
                assert_eq!(held.unwrap_err(), HoldError::Miss(Miss::Torn));
                b.release(clock, Vec::new());
            } else {
                assert_eq!(b.open(&[wanted(1, handle)]), [Err(Miss::Torn)]);
            }
            (0..3).for_each(|_| assert!(!is_found(b, handle)));
            b.member().fabric().interposer().mend();
            assert!(is_found_soon(b, handle), "holds: {holds}");
            let ticket = b.open(&[wanted(1, handle)]).remove(0).unwrap();
            assert_eq!(b.close(&[(ticket, None)]), [Ok(())]);
        });
    }
}

#[test]
fn a_second_look_at_a_line_that_stays_torn_misses_it_for_a_while_only() {
    with_a_torn_line(quiet(), |_, b, _, handle, line| {
        let ticket = b.open(&[wanted(1, handle)]).remove(0).unwrap();
        b.member().fabric().interposer().tear(line, u32::MAX);
        assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);
        assert!(!is_found(b, handle));
        b.member().fabric().interposer().mend();
        assert!(is_found_soon(b, handle));
    });
}

#[test]
fn an_owner_removes_what_it_cannot_read_and_nothing_else() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let held = hold(b, clock, 1).unwrap();
        a.sync();
        let line = a.segment(handle.owner()).unwrap().range(handle.slot());
        let flip = || {
            rig.rack.flip_bit(line.start().bytes() + 36, 5);
            a.member().fabric().refresh(line);
        };
        flip();
        assert_eq!(fetch(a, 1, handle), Err(Miss::Torn));
        assert_eq!(find(a, 1), None, "quarantined");
        flip();
        assert_eq!(a.retire_unreadable(clock, &[handle]), 0, "a writer was in between");
        assert_eq!(find(a, 1), Some(handle));
        assert!(find_and_fetch(a, 1) && fetch(b, 1, held.handle()).is_ok());

        flip();
        let foreign = Handle::new(b.member().node(), handle.slot(), handle.generation());
        let outside = Handle::new(handle.owner(), 32, 1);
        assert_eq!(a.retire_unreadable(clock, &[foreign, outside, handle]), 1);
        assert_eq!(a.process_state().metrics().retired_blocks, 1);
        assert_eq!(publish(a, clock, 1).generation(), handle.generation() + 1);
        assert!(find_and_fetch(b, 1));
    });
}
