//! Several folders of the operating system, one of which fails.

use kv_cache::NamespaceTag;

use super::*;
use crate::format::{ALL_LAYERS, Encoding, Page};
use crate::volume::checksum;

const SECOND: Duration = Duration::from_secs(10);

fn key(number: u64) -> BlockKey {
    bytemuck::cast([number, number.wrapping_mul(31), 5])
}

fn payload(number: u64) -> Vec<u8> {
    (0..9000_u64).map(|at| u8::try_from((at * 7 + number) % 251).unwrap()).collect()
}

fn options(access: Access) -> StoreOptions {
    StoreOptions { engine: EngineKind::Uring, host: [1; 16], take_over: false, access }
}

fn folders(root: &Path, names: &[&str]) -> Vec<FolderOptions> {
    let folder = |name: &&str| {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        FolderOptions { path, capacity_bytes: 8 << 20 }
    };
    names.iter().map(folder).collect()
}

fn put(store: &Store, number: u64) -> Result<(), PutError> {
    let bytes = payload(number);
    let (length, crc) = (u32::try_from(bytes.len()).unwrap(), checksum(&bytes));
    let page = Page {
        fingerprint: 1,
        layout_version: 1,
        layer: ALL_LAYERS,
        first_token: 0,
        last_token: 15,
        encoding: Encoding::Raw,
        offset_bytes: 0,
        bytes: length,
        crc,
    };
    let tag = NamespaceTag::default();
    let spec = BlockSpec { key: key(number), tag, depth: 0, bytes: length, crc, pages: &[page] };
    let (buffer, outcome) = store.put(&spec, Buffer::of(&bytes).unwrap());
    assert!(buffer.is_some());
    outcome
}

fn get(store: &Store, number: u64) -> Result<Vec<u8>, GetMiss> {
    let buffer = Buffer::zeroed(9000).unwrap();
    let (buffer, bytes) = store.get(key(number), buffer, SECOND).map_err(|(_, miss)| miss)?;
    Ok(buffer.bytes().unwrap()[..bytes as usize].to_vec())
}

fn open(folders: &[FolderOptions], access: Access) -> Store {
    let store = Store::open(folders, options(access)).unwrap();
    store.scan(|_, _| {}).unwrap();
    store
}

#[test]
fn blocks_are_striped_and_found_in_any_order_of_folders() {
    let root = tempfile::tempdir().unwrap();
    let mut both = folders(root.path(), &["a", "b"]);
    let store = open(&both, Access::Write);
    (0..60).for_each(|number| put(&store, number).unwrap());
    assert!(store.find(&key(1)).is_none());
    let (keys, errors) = store.commit();
    assert_eq!((keys.len(), errors.len()), (60, 0));
    let shares: Vec<_> = store.volumes().map(|(_, volume)| volume.usage().blocks).collect();
    assert!(shares.iter().all(|blocks| *blocks > 10), "{shares:?}");
    assert!(matches!(put(&store, 7), Err(PutError::Reserve(ReserveError::Exists))));
    drop(store);
    both.reverse();
    let both = [both, folders(root.path(), &["c"])].concat();
    let store = open(&both, Access::Write);
    (0..60).for_each(|number| assert_eq!(get(&store, number).unwrap(), payload(number)));
    assert!(matches!(get(&store, 99), Err(GetMiss::Read(ReadMiss::NotFound))));
    assert!(store.remove(&key(5)) && !store.remove(&key(5)));
    let mut verified = 0;
    store.verify(|(_, outcome)| {
        verified += u32::from(outcome.is_ok());
        true
    });
    assert_eq!(verified, 59);
}

#[test]
fn folders_of_other_stores_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (folders(root.path(), &["a"]), folders(root.path(), &["b"]));
    drop((open(&a, Access::Write), open(&b, Access::Write)));
    let both = [a.clone(), b].concat();
    let refused = Store::open(&both, options(Access::Write)).unwrap_err();
    assert!(matches!(refused, OpenStoreError::OtherStore { .. }), "{refused}");
    let _owner = open(&a, Access::Write);
    let refused = Store::open(&a, options(Access::Read)).unwrap_err();
    assert!(refused.to_string().contains("another process"), "{refused}");
    let empty = folders(root.path(), &["empty"]);
    assert!(Store::open(&empty, options(Access::Read)).is_err());
    assert!(Store::open(&empty, options(Access::Repair)).is_err());
    assert!(matches!(Store::open(&[], options(Access::Read)), Err(OpenStoreError::NoFolder)));
}

#[test]
fn watermarks_keep_room_for_new_blocks() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = open(&folders(root.path(), &["a", "b"]), Access::Write);
    let mut evicted = 0;
    for number in 0..3000 {
        put(&store, number).unwrap_or_else(|error| panic!("block {number}: {error}"));
        if number % 40 == 39 {
            assert!(store.commit().1.is_empty());
            let (blocks, errors) = store.keep_room(80, 60);
            evicted += blocks;
            assert!(errors.is_empty());
            for (_, volume) in store.volumes() {
                volume.check().unwrap();
            }
        }
    }
    assert!(evicted > 1000, "{evicted}");
    assert_eq!(get(&store, 2999).unwrap(), payload(2999));
}

#[test]
fn an_owner_lists_blocks_and_says_which_folder_has_one() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&folders(root.path(), &["a", "b"]), Access::Write);
    (1..=40).for_each(|number| put(&store, number).unwrap());
    assert_eq!(store.block(&key(1)), None, "before the commit");
    assert_eq!(store.commit().0.len(), 40);
    let parts = |folder| {
        let parts = (0..).map_while(|part| store.blocks(folder, part)).flatten();
        parts.map(|block| (folder, block)).collect::<Vec<_>>()
    };
    let mut found = std::collections::BTreeSet::new();
    for (folder, block) in (0..store.folders()).flat_map(parts) {
        assert_eq!(store.block(&block.key), Some((folder, block)));
        let number = bytemuck::cast::<_, [u64; 3]>(block.key)[0];
        assert_eq!(block.crc, checksum(&payload(number)));
        found.insert(number);
    }
    assert!(found.into_iter().eq(1..=40) && store.is_scanned());
    let buffer = Buffer::zeroed(9000).unwrap();
    let missing = store.read(key(99), buffer, Box::new(|_| ())).unwrap_err();
    assert!(matches!(missing, (_, ReadMiss::NotFound)));
}
