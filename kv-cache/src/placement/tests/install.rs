//! Moves against trying all orders, and the order of prefetches against what two buffers allow.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const LAYERS: u16 = 3;
/// Blocks a layer of the two requests.
const BLOCKS: [u64; 2] = [2, 5];

/// A plan of two requests: bit `3 * request + layer - 1` says that the layer is offloaded.
fn plan_of(bits: u32) -> Installed {
    let mut installed = Installed::default();
    for request in 0..2 {
        let offloaded: Vec<_> =
            (1..=LAYERS).filter(|layer| bits & bit(request, *layer) != 0).map(u64::from).collect();
        installed.apply(&Action::Place { id: request, placement: offload(LAYERS, &offloaded) });
    }
    installed
}

fn bit(request: u64, layer: u16) -> u32 {
    1 << (u64::from(LAYERS) * request + u64::from(layer) - 1)
}

/// Blocks that are in the engine's memory.
fn memory(bits: u32) -> u64 {
    let blocks = |request: usize| {
        let resident = (1..=LAYERS).filter(|layer| bits & bit(request as u64, *layer) == 0);
        BLOCKS[request] * resident.count() as u64
    };
    blocks(0) + blocks(1)
}

/// The least number of moves of single layers between any two plans, by breadth-first search.
fn distances(from: u32) -> BTreeMap<u32, usize> {
    let mut found = BTreeMap::from([(from, 0)]);
    let mut queue = VecDeque::from([from]);
    while let Some(plan) = queue.pop_front() {
        for layer in 0..6 {
            let next = plan ^ (1 << layer);
            if !found.contains_key(&next) {
                found.insert(next, found[&plan] + 1);
                queue.push_back(next);
            }
        }
    }
    found
}

#[test]
fn moves_are_fewest_and_never_need_more_memory_than_the_larger_plan() {
    for from in 0..64 {
        let distances = distances(from);
        for to in 0..64 {
            let moves = plan_of(from).moves_to(&plan_of(to));
            assert_eq!(moves.len(), distances[&to], "{from:06b} to {to:06b}: {moves:?}");
            let (mut now, most) = (from, memory(from).max(memory(to)));
            for step in moves {
                let (leaves, at) = match step {
                    Move::Leave { request, layer } => (true, bit(request, layer)),
                    Move::Come { request, layer } => (false, bit(request, layer)),
                };
                assert_eq!(now & at == 0, leaves, "{step:?} of {now:06b}");
                now ^= at;
                assert!(memory(now) <= most, "{from:06b} to {to:06b} at {now:06b}");
            }
            assert_eq!(now, to);
        }
    }
}

#[test]
fn a_paused_request_comes_back_from_where_it_is() {
    let mut installed = Installed::of(7, &offload(9, &[3, 6, 9]));
    installed.apply(&Action::Pause(7));
    assert_eq!(installed.batch(), []);
    let paused = installed.clone();
    installed.apply(&Action::Evict { id: 7, layers: vec![8, 5] });
    let left = |layer| Move::Leave { request: 7, layer };
    assert_eq!(paused.moves_to(&installed), [left(5), left(8)]);
    let evicted = installed.clone();
    installed.apply(&Action::Resume(7));
    installed.apply(&Action::Place { id: 7, placement: offload(9, &[4, 8]) });
    let came = |layer| Move::Come { request: 7, layer };
    let expected = [left(4), came(3), came(5), came(6), came(9)];
    assert_eq!(evicted.moves_to(&installed), expected);
    assert_eq!(installed.batch(), [(7, offload(9, &[4, 8]))]);
    let reason = Infeasible::Memory { step: 1, least_blocks: 9, gpu_blocks: 3 };
    let running = installed.clone();
    installed.apply(&Action::Reject { id: 7, reason });
    assert_eq!(running.moves_to(&installed), [], "nothing of a request that is over");
}

#[test]
fn two_buffers_are_filled_in_turn_soonest_layer_first() {
    let batch = [(1, offload(9, &[2, 4, 6, 8])), (2, offload(9, &[4, 5])), (3, offload(9, &[]))];
    let mut prefetch = Prefetch::new(&batch);
    let begun = |prefetch: &mut Prefetch| {
        let fetches = std::iter::from_fn(|| prefetch.begin_next());
        fetches.map(|fetch| (fetch.request, fetch.layer, fetch.buffer)).collect::<Vec<_>>()
    };
    assert_eq!(begun(&mut prefetch), [(1, 2, 0), (1, 4, 1), (2, 4, 0), (2, 5, 1)]);
    prefetch.executed(1);
    assert_eq!(begun(&mut prefetch), [], "both buffers of request 1 have a layer to come");
    prefetch.executed(2);
    assert_eq!(begun(&mut prefetch), [(1, 6, 0)]);
    let of_layer: Vec<_> = prefetch.of_layer(4).map(|fetch| fetch.request).collect();
    assert_eq!(of_layer, [1, 2]);
    prefetch.executed(4);
    assert_eq!(begun(&mut prefetch), [(1, 8, 1)]);
}

/// No buffer is written while a layer that has not executed is in it, whatever the placements.
#[test]
fn a_buffer_is_never_written_before_its_layer_has_executed() {
    let mut numbers = Numbers(3);
    for round in 0..200 {
        let batch: Vec<_> = (0..3).map(|id| (id, numbers.placement(12))).collect();
        let mut prefetch = Prefetch::new(&batch);
        let mut buffers: BTreeMap<(u64, usize), u16> = BTreeMap::new();
        let mut begun = 0;
        for layer in 1..=12 {
            while let Some(fetch) = prefetch.begin_next() {
                let before = buffers.insert((fetch.request, fetch.buffer), fetch.layer);
                assert!(before.is_none_or(|before| before < layer), "round {round}: {fetch:?}");
                begun += 1;
            }
            for fetch in prefetch.of_layer(layer).collect::<Vec<_>>() {
                assert_eq!(buffers[&(fetch.request, fetch.buffer)], layer, "round {round}");
            }
            prefetch.executed(layer);
        }
        assert_eq!(begun, batch.iter().map(|(_, at)| at.offloaded().len()).sum::<usize>());
    }
}
