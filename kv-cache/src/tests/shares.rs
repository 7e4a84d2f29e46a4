//! Each node's share of the chunks, as nodes come and go.

use super::*;

#[test]
fn a_share_is_that_of_those_who_take_part_now() {
    shares_as_nodes_come_and_go(SimulatedRack::sticky(3, REGION_BYTES));
}

/// Also run with flushes and fences removed.
pub(super) fn shares_as_nodes_come_and_go(rack: SimulatedRack) {
    let rig = Rig::on(rack, 3, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let chunks = first.layout().chunks() as usize;
    let metadata = LineRange::covering(first.layout().metadata());
    for _ in 0..2 {
        rig.rack.warm(0, metadata);
        assert_eq!(a.fair_share(), chunks / 2);
        let third = rig.join(2);
        assert_eq!(a.fair_share(), chunks / 3);
        rig.rack.warm(0, metadata);
        assert_eq!(third.leave(), LeaveOutcome::NodeLeft);
        assert_eq!(a.fair_share(), chunks / 2);
    }
}
