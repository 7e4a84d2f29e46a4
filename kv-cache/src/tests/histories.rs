//! What a reader says after any history is what the descriptors say.

use std::collections::BTreeMap;
use std::mem::forget;

use cxl_shm::layout::read_superblock;
use cxl_shm::units::NodeId;
use cxl_shm::verify::simulated::Random;

use super::clear::{keep_up, tenant};
use super::*;
use crate::{IndexKey, PoolReader};

const NODES: u16 = 8;
const MODELS: [u64; 3] = [7, 8, 9];
/// Blocks of the longest chain: more than a log has entries.
const CHAIN: u8 = 12;

/// Key space of a model.
fn space(model: u64) -> KeySpace {
    KeySpace::new(ModelFingerprint(model), Namespace::default(), BLOCK_BYTES)
}

fn hashes() -> Vec<BlockHash> {
    (0..CHAIN).map(|number| BlockHash::new([number; 32])).collect()
}

/// The nodes that have each key, by their descriptors.
fn owners(rig: &Rig) -> BTreeMap<IndexKey, Vec<NodeId>> {
    let host = rig.rack.host(usize::from(NODES));
    let (superblock, layout) = read_superblock(&host).unwrap();
    let mut owners: BTreeMap<IndexKey, Vec<NodeId>> = BTreeMap::new();
    for node in layout.nodes() {
        crate::segment_of(&superblock, &layout, node).unwrap().scan(&host, |_, content| {
            if let Ok(SlotContent::Block(block)) = content
                && block.is_readable()
            {
                owners.entry(block.key.index()).or_default().push(node);
            }
        });
    }
    owners
}

fn check(rig: &Rig, reader: &mut PoolReader, what: &str) {
    reader.refresh(&rig.rack.host(usize::from(NODES)));
    let owners = owners(rig);
    assert_eq!(reader.blocks(), owners.values().map(Vec::len).sum::<usize>(), "{what}");
    for models in 1usize..1 << MODELS.len() {
        let chosen = (0..MODELS.len()).filter(|model| models & 1 << model != 0);
        let spaces: Vec<_> = chosen.map(|model| space(MODELS[model])).collect();
        let mut expected = (0, BTreeMap::<NodeId, usize>::new());
        for hash in hashes() {
            let of_each: Vec<_> =
                spaces.iter().map(|space| owners.get(&space.key(&hash).index())).collect();
            let Some(of_each) = of_each.into_iter().collect::<Option<Vec<_>>>() else { break };
            expected.0 += 1;
            of_each
                .into_iter()
                .flatten()
                .for_each(|node| *expected.1.entry(*node).or_default() += 1);
        }
        let found = reader.prefix(&spaces, &hashes());
        let parts = found.parts().iter().copied().collect();
        assert_eq!((found.blocks(), parts), expected, "{what}, models {models:b}");
    }
}

/// One step of a node.
fn act(random: &mut Random, cache: &TestCache<'_>, clock: &impl Clock) {
    let mut below = |bound: u8| u8::try_from(random.below(u64::from(bound))).unwrap();
    // Mostly the first blocks: prefixes become long.
    let number = below(CHAIN).min(below(CHAIN));
    let key = space(MODELS[usize::from(below(3))]).key(&BlockHash::new([number; 32]));
    let namespace = if number.is_multiple_of(2) { Namespace::default() } else { tenant() };
    match random.below(16) {
        0 => _ = cache.evict(clock, None, 1 + random.index(3).unwrap()),
        1 => _ = cache.clear(clock, random.one_in(2).then_some(&tenant())),
        2 => {
            let found = cache.lookup(&[key]);
            let own: Vec<_> = found.blocks().iter().map(|block| block.handle).collect();
            cache.retire(clock, &own);
        }
        3 => _ = keep_up(cache, clock),
        4 => _ = cache.empty_an_orphan(clock, CHUNK_TIMEOUT_MS),
        act => {
            let spec = BlockSpec { key, ..spec(number) };
            let reserved =
                cache.reserve_for(clock, &namespace, &[spec], CHUNK_TIMEOUT_MS).remove(0);
            if let Reservation::Writing(block) = reserved {
                if act == 5 {
                    // Never completed.
                    return forget(block);
                }
                _ = cache.commit(clock, vec![(block, 0)]);
            }
        }
    }
}

fn history(seed: u64) {
    let hosts = usize::from(NODES) + 1;
    let bytes = 2 << 20;
    let rack = if seed.is_multiple_of(2) {
        SimulatedRack::sticky(hosts, bytes)
    } else {
        SimulatedRack::adversarial(hosts, bytes, seed)
    };
    let rig = Rig::sized(rack, bytes, NODES, 32, 8);
    let mut random = Random::new(seed);
    let (superblock, layout) = read_superblock(&rig.rack.host(usize::from(NODES))).unwrap();
    let mut reader = PoolReader::new(&superblock, &layout).unwrap();
    let mut members: Vec<TestMember> = Vec::new();
    for epoch in 0..6 {
        for host in 0..NODES {
            let is_there = members.iter().any(|member| member.node().0 == host);
            if !is_there && (members.is_empty() || random.one_in(2)) {
                members.push(rig.join(host));
            }
        }
        {
            let clock = rig.serve(&members.iter().collect::<Vec<_>>());
            let caches: Vec<_> =
                members.iter().map(|member| Cache::attach(member, &clock).unwrap()).collect();
            for step in 0..40 {
                let cache = &caches[random.index(caches.len()).unwrap()];
                act(&mut random, cache, &clock);
                if random.one_in(6) {
                    check(&rig, &mut reader, &format!("seed {seed}, epoch {epoch}, step {step}"));
                }
            }
        }
        for member in std::mem::take(&mut members) {
            match random.below(4) {
                0 => _ = member.leave(),
                1 => {
                    rig.kill(&member);
                    forget(member);
                }
                _ => members.push(member),
            }
        }
        if random.one_in(2) {
            check(&rig, &mut reader, &format!("seed {seed}, after epoch {epoch}"));
        }
        rig.rack.advance_ms(1 + random.below(2000));
    }
    assert_eq!(rig.rack.conflicts(), [], "seed {seed}");
}

#[test]
fn a_reader_says_what_the_descriptors_say() {
    (0..12).for_each(history);
}
