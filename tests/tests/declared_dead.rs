//! A cache of a node that others have declared dead publishes nothing any more, although
//! its processes run.

use cxl_shm::layout::{Geometry, Layout, LockProtocol};
use cxl_shm::lifecycle::{Deaths, NoFence};
use cxl_shm::node::SUSPECT_MS;
use cxl_shm::verify::simulated::Settings;
use kv_cache::{
    BlockHash, BlockSpec, Cache, CacheGeometry, KeySpace, Model, Namespace, Refusal, Reservation,
};
use rackline_tests::rack::{Cluster, Mutant};

const NODES: u16 = 2;

fn cluster() -> Cluster {
    let cache = CacheGeometry::new(64, 16).expect("both are powers of two");
    let geometry = Geometry {
        region_bytes: 2 << 20,
        nodes: NODES,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: cache.area_lines(NODES),
        host_words: 0,
    };
    let layout = Layout::new(geometry).expect("it fits");
    let geometry = Geometry { host_words: cache.host_words(&layout) as u64, ..geometry };
    let settings = Settings::sticky(usize::from(NODES), geometry.region_bytes);
    Cluster::format(settings, geometry, LockProtocol::Bakery, cache.encode(), Mutant::NONE)
}

fn spec(number: u8) -> BlockSpec {
    let model = Model {
        name: "tiny",
        revision: "1",
        dtype: "u8",
        layout_version: 1,
        block_tokens: 4,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 64,
    };
    let fingerprint = model.fingerprint();
    let keys = KeySpace::new(fingerprint, Namespace::default(), 5000);
    BlockSpec { key: keys.key(&BlockHash::new([number; 32])), bytes: 5000, depth: 0 }
}

#[test]
fn a_node_that_was_declared_dead_publishes_no_block() {
    let cluster = cluster();
    let (watcher, victim) = (cluster.join(0, "watcher"), cluster.join(1, "victim"));
    let (here, there) = (cluster.clock(0), cluster.clock(1));
    let cache = Cache::attach(&victim, &there).expect("the region is a cache");
    victim.beat();
    let before = cache.reserve(&there, &[spec(1)], 1000);
    assert!(matches!(before[..], [Reservation::Writing(_)]), "{before:?}");

    // Its heartbeat has stopped for the watcher, which declares the host dead and cannot fence it.
    let manage = watcher.manage().expect("nobody else manages");
    let mut deaths = Deaths::watch(&manage, &here, SUSPECT_MS);
    for now_ms in (0..4 * SUSPECT_MS).step_by(10) {
        deaths.step(now_ms, true, &mut NoFence);
    }
    // It was only slow. Until it has seen the decision it cannot know.
    victim.beat();
    let dead = victim.check_member().expect_err("others have decided");
    let after = cache.reserve(&there, &[spec(2), spec(3)], 1000);
    assert_eq!(after.len(), 2);
    for refused in &after {
        let as_dead =
            matches!(refused, Reservation::Refused(Refusal::MembershipLost(why)) if *why == dead);
        assert!(as_dead, "{refused:?}");
    }
    assert!(cluster.join_as(1, 1, "another").is_err(), "it takes no more processes either");
}
