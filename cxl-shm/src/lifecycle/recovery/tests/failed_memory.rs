//! Metadata that cannot be read, while a death is decided and recovered from.

use super::*;
use crate::fabric::Fabric;
use crate::layout::Layout;
use crate::units::LineOffset;
use crate::verify::simulated::FailedLine;

/// Lets the victim be declared dead. Then a line fails, and the recoverer looks once more.
fn orders_after_a_failure(line: impl Fn(&Layout) -> LineOffset) -> (Vec<FenceOrder>, bool) {
    let bed = Bed::of_three(1);
    let [first, second] = [0, 1].map(|host| bed.join(host, MANAGER_PID));
    let victim = bed.join(2, MANAGER_PID);
    bed.dies(victim);
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, 0);
    let mut orders = Vec::new();
    let fence = &mut RecordingFence(&mut orders);
    bed.watch(&mut deaths, &[&first, &second], fence, is_quarantined);
    assert_eq!(orders.len(), 1, "it was told of the victim");
    orders.clear();
    bed.rack.fail(line(first.layout()), FailedLine::default());
    let events = bed.look(&mut deaths, &[], &mut RecordingFence(&mut orders));
    assert_eq!(events, [], "what it saw were zeros");
    (orders, first.fabric().is_cut_off())
}

#[test]
fn no_host_is_fenced_by_zeros_in_place_of_a_line_that_failed() {
    let host_name = |layout: &Layout| layout.host_name(VICTIM).at();
    let line = |layout: &Layout| layout.node_line(VICTIM).at();
    let ballot = |layout: &Layout| layout.ballots(NodeId(1)).range().iter().nth(4).unwrap();
    for line in [host_name, line, ballot] {
        assert_eq!(orders_after_a_failure(line), (vec![], true));
    }
}
