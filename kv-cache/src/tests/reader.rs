//! Programs that are no members: they see the pool, and write nothing.

use cxl_shm::layout::read_superblock;
use cxl_shm::units::NodeId;

use super::*;
use crate::{Changes, IndexKey, PoolReader};

fn reader(rig: &Rig) -> PoolReader {
    let (superblock, layout) = read_superblock(&rig.rack.host(2)).unwrap();
    PoolReader::new(&superblock, &layout).unwrap().with_changes()
}

fn spaces(models: impl IntoIterator<Item = u64>) -> Vec<KeySpace> {
    let space = |model| KeySpace::new(ModelFingerprint(model), Namespace::default(), BLOCK_BYTES);
    models.into_iter().map(space).collect()
}

/// By what the block is found.
fn found(number: u8) -> IndexKey {
    key(number).index()
}

fn hashes(numbers: std::ops::RangeInclusive<u8>) -> Vec<BlockHash> {
    numbers.map(|number| BlockHash::new([number; 32])).collect()
}

/// Publishes a block of another model.
fn publish_of(cache: &TestCache<'_>, clock: &impl Clock, model: u64, number: u8) {
    let key = spaces([model])[0].key(&BlockHash::new([number; 32]));
    let spec = BlockSpec { key, ..spec(number) };
    let Reservation::Writing(block) = cache.reserve(clock, &[spec], CHUNK_TIMEOUT_MS).remove(0)
    else {
        panic!("no room");
    };
    store(cache, block.payload(), &content(number));
    cache.commit(clock, vec![(block, checksum(&content(number)))]).remove(0).unwrap();
}

#[test]
fn a_reader_sees_the_prefix_and_where_it_lies() {
    let rig = Rig::new(3, 32, 8);
    let mut reader = reader(&rig);
    on_two_hosts(&rig, |a, b, clock| {
        let host = rig.rack.host(2);
        for number in 1..=3 {
            publish(a, clock, number);
        }
        publish(b, clock, 4);
        publish(b, clock, 6);
        let own = spaces([MODEL.0]);
        assert_eq!(reader.prefix(&own, &hashes(1..=6)).blocks(), 0, "nothing before a refresh");
        reader.refresh(&host);
        let found = reader.prefix(&own, &hashes(1..=6));
        assert_eq!((found.blocks(), found.parts()), (4, &[(NodeId(0), 3), (NodeId(1), 1)][..]));
        assert_eq!(reader.blocks(), 5);

        // A block counts where every rank has it.
        publish_of(b, clock, 8, 1);
        reader.refresh(&host);
        let found = reader.prefix(&spaces([MODEL.0, 8]), &hashes(1..=6));
        assert_eq!((found.blocks(), found.parts()), (1, &[(NodeId(0), 1), (NodeId(1), 1)][..]));
        assert_eq!(reader.prefix(&spaces([9]), &hashes(1..=6)).blocks(), 0);
        assert_eq!(reader.prefix(&[], &hashes(1..=6)).blocks(), 0);
    });
}

#[test]
fn removals_and_an_overrun_log_are_noticed() {
    let rig = Rig::new(3, 32, 8);
    let mut reader = reader(&rig);
    on_two_hosts(&rig, |a, _, clock| {
        let host = rig.rack.host(2);
        let handles: Vec<_> = (1..=4).map(|number| publish(a, clock, number)).collect();
        reader.refresh(&host);
        // A log that was never read is scanned for, in the order of the slots.
        let mut added: Vec<_> = handles.iter().copied().zip((1..=4).map(found)).collect();
        added.sort_unstable_by_key(|(handle, _)| handle.slot());
        assert_eq!(reader.take_changes(), Changes { added, removed: vec![] });
        a.retire(clock, &handles[1..2]);
        reader.refresh(&host);
        assert_eq!(reader.take_changes(), Changes { added: vec![], removed: vec![found(2)] });
        assert_eq!(reader.prefix(&spaces([MODEL.0]), &hashes(1..=4)).blocks(), 1);
        // More than the log has room for.
        a.retire(clock, &handles[2..]);
        let more: Vec<_> =
            (11..=20).map(|number| (publish(a, clock, number), found(number))).collect();
        reader.refresh(&host);
        let changes = reader.take_changes();
        let sorted = |mut list: Vec<IndexKey>| {
            list.sort_unstable();
            list
        };
        assert_eq!(sorted(changes.removed), sorted(vec![found(3), found(4)]));
        assert_eq!(changes.added.len(), more.len());
        assert!(more.iter().all(|new| changes.added.contains(new)));
        assert_eq!(reader.prefix(&spaces([MODEL.0]), &hashes(11..=20)).blocks(), 10);
    });
}

#[test]
fn what_a_node_leaves_is_still_seen() {
    let rig = Rig::new(3, 32, 8);
    let mut reader = reader(&rig);
    {
        let first = rig.join(0);
        let clock = rig.serve(&[&first]);
        let cache = Cache::attach(&first, &clock).unwrap();
        publish(&cache, &clock, 1);
    }
    reader.refresh(&rig.rack.host(2));
    assert_eq!(reader.prefix(&spaces([MODEL.0]), &hashes(1..=1)).blocks(), 1);
}

/// Publishes a block of `MODEL` with the content of `number`.
fn publish_marked(
    cache: &TestCache<'_>,
    clock: &impl Clock,
    hash: BlockHash,
    number: u8,
) -> Handle {
    let spec = BlockSpec { key: spaces([MODEL.0])[0].key(&hash), ..spec(number) };
    let Reservation::Writing(block) = cache.reserve(clock, &[spec], CHUNK_TIMEOUT_MS).remove(0)
    else {
        panic!("no room");
    };
    store(cache, block.payload(), &content(number));
    cache.commit(clock, vec![(block, checksum(&content(number)))]).remove(0).unwrap().handle
}

/// A hash that begins with eight zeros.
fn marked(number: u8) -> BlockHash {
    let mut hash = [number; 32];
    hash[..8].fill(0);
    BlockHash::new(hash)
}

/// A tool reads blocks that take the slots and the bytes of others before them.
pub(super) fn read_by_a_tool(rack: SimulatedRack) {
    let rig = Rig::on(rack, 3, 32, 8);
    let mut reader = reader(&rig);
    on_two_hosts(&rig, |a, _, clock| {
        let host = rig.rack.host(2);
        for number in 1..=4 {
            let handle = publish_marked(a, clock, marked(9), number);
            let read = |reader: &PoolReader| {
                reader.read_marked(&host, &[handle], &spaces([MODEL.0])[0], BLOCK_BYTES)
            };
            let key = spaces([MODEL.0])[0].key(&marked(9));
            assert_eq!(read(&reader), [(key, content(number))]);
            reader.refresh(&host);
            assert!(reader.has(key.index()));
            a.retire(clock, &[handle]);
            assert_eq!(read(&reader), []);
            reader.refresh(&host);
            assert!(!reader.has(key.index()));
        }
    });
}

#[test]
fn bytes_are_those_of_the_block_or_none() {
    let rig = Rig::new(3, 32, 8);
    let reader = reader(&rig);
    on_two_hosts(&rig, |a, _, clock| {
        let host = rig.rack.host(2);
        let own = &spaces([MODEL.0])[0];
        let marked = |number: &u8| publish_marked(a, clock, marked(*number), *number);
        let mut handles: Vec<_> = [1, 2, 3].iter().map(marked).collect();
        // A block of the same space whose hash is not marked.
        handles.push(publish(a, clock, 4));
        let read = |space: &KeySpace, bytes_max| {
            let read = reader.read_marked(&host, &handles, space, bytes_max);
            read.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>()
        };
        assert_eq!(read(own, BLOCK_BYTES), [1, 2, 3].map(content));
        assert_eq!(
            read(own, BLOCK_BYTES - 1),
            Vec::<Vec<u8>>::new(),
            "longer than the reader takes"
        );
        assert_eq!(read(&spaces([8])[0], BLOCK_BYTES), Vec::<Vec<u8>>::new());
        a.retire(clock, &handles[..1]);
        rewrite(a, handles[1], |block| Descriptor { checksum: !block.checksum, ..block });
        assert_eq!(read(own, BLOCK_BYTES), [content(3)], "one is gone, and one damaged");
    });
}
