use super::*;
use crate::{Simulation, Touch};
use kv_cache::evict::policy::PolicyKind;

fn shape(nodes: u16, workers_per_node: u16, chunks: u32, chunk_blocks: u32) -> PoolShape {
    PoolShape {
        nodes: NonZeroU16::new(nodes).unwrap(),
        workers_per_node: NonZeroU16::new(workers_per_node).unwrap(),
        chunks,
        chunk_blocks: NonZeroU32::new(chunk_blocks).unwrap(),
    }
}

fn trace(requests: &[&[u64]]) -> Trace {
    let lines = requests.iter().map(|ids| format!("{{\"hash_ids\": {ids:?}}}\n"));
    Trace::read(lines.collect::<String>().as_bytes()).unwrap()
}

/// Forty conversations in turn, each of which grows behind a beginning that all share.
fn conversations() -> Trace {
    let mut text = String::new();
    for turn in 1..12 {
        for conversation in 0..40 {
            let own =
                (0..3 * turn + conversation % 5).map(|depth| 1000 * (conversation + 1) + depth);
            let ids: Vec<u64> = (0..4).chain(own).collect();
            text.push_str(&format!("{{\"hash_ids\": {ids:?}}}\n"));
        }
    }
    Trace::read(text.as_bytes()).unwrap()
}

#[test]
fn with_room_for_all_the_division_does_not_matter() {
    let trace = conversations();
    let all = Simulation::new(&trace, None, PolicyKind::Clock, Touch::LeafFirst).run();
    for (nodes, workers_per_node) in [(1, 1), (2, 1), (3, 2)] {
        let chunks = trace.unique_blocks() / 16 + 1 + u32::from(nodes);
        let shape = shape(nodes, workers_per_node, chunks, 16);
        assert_eq!(PoolSimulation::new(&trace, shape).run(), all);
    }
}

#[test]
fn a_pool_of_one_node_hits_about_what_its_policy_does() {
    let trace = conversations();
    for chunks in [12, 25, 50] {
        let shape = shape(1, 1, chunks, 16);
        let capacity = u32::try_from(shape.blocks()).unwrap();
        let alone =
            Simulation::new(&trace, Some(capacity), PolicyKind::Clock, Touch::LeafFirst).run();
        let pool = PoolSimulation::new(&trace, shape).run();
        assert!(pool.evictions > 0 && alone.evictions > 0);
        let difference = (pool.hit_rate() - alone.hit_rate()).abs();
        assert!(difference < 0.05, "{chunks} chunks: {pool:?} {alone:?}");
    }
}

#[test]
fn nobody_evicts_what_another_node_has() {
    // Node 0 takes both chunks, and node 1 has nothing to make room with.
    let trace = trace(&[&[0, 1, 2, 3], &[10], &[20, 21], &[0, 1]]);
    let mut pool = PoolSimulation::new(&trace, shape(2, 1, 2, 2));
    while pool.step() {}
    assert_eq!((pool.outcome().hits, pool.outcome().evictions, pool.refused()), (2, 2, 1));
}

#[test]
fn what_a_request_found_stays_while_it_publishes_the_rest() {
    let trace = trace(&[&[0, 1, 2], &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4], &[9], &[0, 1, 2]]);
    let mut pool = PoolSimulation::new(&trace, shape(1, 1, 1, 4));
    for (hits, evictions, refused) in [(0, 0, 0), (3, 0, 1), (7, 0, 2), (7, 1, 2), (10, 1, 2)] {
        assert!(pool.step());
        let outcome = pool.outcome();
        assert_eq!((outcome.hits, outcome.evictions, pool.refused()), (hits, evictions, refused));
    }
}

#[test]
fn requests_go_round_nodes_and_then_workers() {
    let shape = shape(2, 3, 2, 1);
    let servers: Vec<_> = (0..7).map(|request| shape.server(request)).collect();
    assert_eq!(servers, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 0)]);
}
