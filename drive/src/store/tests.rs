//! Several folders of the operating system, one of which fails.

use kv_cache::{NamespaceTag, Watermarks};

use super::*;
use crate::format::{ALL_LAYERS, Encoding, Page};
use crate::io::faulty::{Call, Fault, Faults};
use crate::policy::Budgets;
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

fn number_of(key: &BlockKey) -> u64 {
    let [number, ..]: [u64; 3] = bytemuck::cast(*key);
    number
}

fn put(store: &Store, number: u64) -> Result<(), PutError> {
    put_of(store, number, 0)
}

/// Puts a block of a namespace.
fn put_of(store: &Store, number: u64, namespace: u64) -> Result<(), PutError> {
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
    let tag = NamespaceTag::from_bits(u16::try_from(namespace).unwrap());
    let spec = BlockSpec {
        key: key(number),
        tag,
        depth: 0,
        bytes: length,
        stored_bytes: length,
        crc,
        pages: &[page],
    };
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

/// Keeps room, and says which blocks left.
fn keep_room(store: &Store, marks: (u16, u16), budgets: &Budgets, stays: &[u64]) -> Vec<BlockKey> {
    let mut told = Vec::new();
    let stays: Vec<_> = stays.iter().copied().map(key).collect();
    let mut room = KeepRoom {
        watermarks: Watermarks::new(marks.0, marks.1).unwrap(),
        budgets,
        may_leave: &mut |key| !stays.contains(key),
        leaving: &mut |keys| {
            assert!(keys.iter().all(|key| store.find(key).is_some()), "told before they leave");
            told.extend_from_slice(keys);
        },
    };
    let (left, errors) = store.keep_room(&mut room);
    assert_eq!((left, errors.len()), (told.len(), 0));
    assert!(told.iter().all(|key| store.find(key).is_none()));
    store.volumes().for_each(|(_, volume)| volume.check().unwrap());
    told
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
            store.used(&[key(7)]);
            evicted += keep_room(&store, (80, 60), &Budgets::default(), &[3]).len();
            for (_, volume) in store.volumes() {
                let usage = volume.usage();
                assert!(usage.in_use() * 100 <= usage.room() * 80, "{usage:?}");
            }
        }
    }
    assert!(evicted > 1000, "{evicted}");
    // What is used stays, and so does what may not leave; else the newest do.
    for number in [3, 7, 2999] {
        assert_eq!(get(&store, number).unwrap(), payload(number));
    }
    assert!(get(&store, 4).is_err());
}

#[test]
fn namespaces_over_their_budgets_leave_first() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = open(&folders(root.path(), &["a"]), Access::Write);
    // Namespaces in turn, 250 blocks of 3 pages each.
    (0..500).for_each(|number| put_of(&store, number, number % 2).unwrap());
    store.commit();
    let [first, second] = [0, 1].map(NamespaceTag::from_bits);
    let extent = 3 * 4096;
    let (_, volume) = store.volumes().next().unwrap();
    assert_eq!([first, second].map(|tag| volume.bytes_of(tag)), [250 * extent; 2]);
    let mut budgets = Budgets::default();
    budgets.set(second, 150 * extent);
    let room = volume.usage().room();
    let all = 500 * extent;
    let low = u16::try_from((all - 150 * extent) * 100 / room).unwrap();
    let left = keep_room(&store, (low + 1, low), &budgets, &[]);
    // 150 blocks have to leave, or some more: 100 of the one that is over its budget, then the oldest.
    assert!((150..160).contains(&left.len()), "{}", left.len());
    assert!(left[..100].iter().all(|key| number_of(key) % 2 == 1));
    assert!(left[100..].iter().all(|key| number_of(key) < 300), "the oldest of both");
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

/// Calls `act`. A call that hangs meanwhile takes too long.
fn with_hanging<T: Send>(faults: &Faults, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        faults.wait_for_delay();
        while !acting.is_finished() {
            faults.time_is_over();
            std::thread::yield_now();
        }
        acting.join().unwrap()
    })
}

#[test]
fn a_sync_that_does_not_end_costs_the_blocks_of_its_folder_only() {
    let root = tempfile::tempdir().unwrap();
    let both = folders(root.path(), &["a", "b"]);
    let faults = Faults::of_folder(&both[0].path);
    let store = open(&both, Access::Write);
    (0..40).for_each(|number| put(&store, number).unwrap());
    faults.plan(Some(Call::Sync), 0, 1, Fault::Delay);
    let (keys, errors) = with_hanging(&faults, || store.commit());
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("has not ended a call for 60 seconds"), "{}", errors[0]);
    assert!((5..40).contains(&keys.len()), "{}", keys.len());
    for key in &keys {
        assert_eq!(get(&store, number_of(key)).unwrap(), payload(number_of(key)));
    }
    faults.release();
    // The call that hung has the folder until it ends.
    while store.folders.iter().any(|folder| folder.calls.is_silent()) {
        std::thread::yield_now();
    }
    drop(store);
    // The blocks of the commit that failed are not there, the others are.
    let store = open(&both, Access::Write);
    let found = (0..40).filter(|number| get(&store, *number).is_ok()).count();
    assert_eq!(found, keys.len());
}

#[test]
fn a_folder_that_cannot_be_opened_in_time_is_left_out_and_tried_again() {
    let root = tempfile::tempdir().unwrap();
    let both = folders(root.path(), &["a", "b"]);
    let faults = Faults::of_folder(&both[1].path);
    let store = open(&both, Access::Write);
    (0..40).for_each(|number| put(&store, number).unwrap());
    let (keys, errors) = store.commit();
    assert_eq!((keys.len(), errors.len()), (40, 0));
    drop(store);
    faults.plan(Some(Call::Read), 0, 1, Fault::Delay);
    let store = with_hanging(&faults, || open(&both, Access::Write));
    assert_eq!(store.volumes().count(), 1);
    // The call has not ended: another try fails at once.
    assert_eq!(store.reopen(), 0);
    faults.release();
    while store.reopen() == 0 {
        std::thread::yield_now();
    }
    store.scan(|_, _| {}).unwrap();
    (0..40).for_each(|number| assert_eq!(get(&store, number).unwrap(), payload(number)));
}

#[test]
fn one_of_several_folders_is_repaired_and_belongs_to_the_store_again() {
    let root = tempfile::tempdir().unwrap();
    let both = folders(root.path(), &["a", "b"]);
    let store = open(&both, Access::Write);
    (0..40).for_each(|number| put(&store, number).unwrap());
    assert_eq!(store.commit().0.len(), 40);
    drop(store);
    std::fs::write(both[1].path.join("manifest"), "damaged").unwrap();
    assert!(Store::open(&both, options(Access::Write)).is_err());
    let store = open(&both[1..], Access::Repair);
    assert!(store.commit().1.is_empty());
    drop(store);
    // A look at it alone gives it no other name.
    drop(open(&both[1..], Access::Read));
    let store = open(&both, Access::Write);
    (0..40).for_each(|number| assert_eq!(get(&store, number).unwrap(), payload(number)));
    drop(store);
    // Nor does the order of the folders.
    let store = open(&[both[1].clone(), both[0].clone()], Access::Write);
    (0..40).for_each(|number| assert_eq!(get(&store, number).unwrap(), payload(number)));
}

/// DRIVE-S2.
#[test]
fn a_new_folder_beside_one_that_does_not_answer_waits_for_its_store() {
    let root = tempfile::tempdir().unwrap();
    let both = folders(root.path(), &["a", "b"]);
    let faults = Faults::of_folder(&both[0].path);
    let store = open(&both[..1], Access::Write);
    put(&store, 1).unwrap();
    store.commit();
    drop(store);
    faults.plan(None, 0, u64::MAX, Fault::Error(libc::EIO));
    let refused = Store::open(&both, options(Access::Write)).unwrap_err();
    assert!(matches!(refused, OpenStoreError::StoreUnknown { .. }), "{refused}");
    assert_eq!(
        std::fs::read_dir(&both[1].path)
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().file_name() == "manifest" })
            .count(),
        0
    );
    faults.clear();
    let store = open(&both, Access::Write);
    assert_eq!((store.volumes().count(), get(&store, 1).unwrap()), (2, payload(1)));
}

#[test]
fn nothing_leaves_a_folder_before_its_tables_are_read() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let both = folders(root.path(), &["a"]);
    let store = open(&both, Access::Write);
    (0..480).for_each(|number| put(&store, number).unwrap());
    assert_eq!(store.commit().0.len(), 480);
    drop(store);
    let store = Store::open(&both, options(Access::Write)).unwrap();
    assert_eq!(keep_room(&store, (60, 50), &Budgets::default(), &[]), []);
    store.scan(|_, _| {}).unwrap();
    assert!(!keep_room(&store, (60, 50), &Budgets::default(), &[]).is_empty());
}

/// Near the whole capacity no segment can be made long before the blocks reach the watermark.
#[test]
fn a_folder_takes_blocks_again_whatever_its_watermarks_and_size() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut folder = folders(root.path(), &["a"]);
    for (capacity_bytes, marks) in [(8 << 20, (100, 99)), (2 << 20, (99, 98)), (3 << 20, (90, 80))]
    {
        folder[0].capacity_bytes = capacity_bytes;
        let store = open(&folder, Access::Write);
        let mut taken = 0;
        for number in 0..3000 {
            taken += u32::from(put(&store, capacity_bytes + number).is_ok());
            if number % 40 == 39 {
                assert!(store.commit().1.is_empty());
                keep_room(&store, marks, &Budgets::default(), &[]);
            }
        }
        assert!(taken > 600, "{taken} of 3000 with {capacity_bytes} bytes and {marks:?}");
    }
}

#[test]
fn a_block_that_another_folder_has_too_is_not_told_to_leave() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let both = folders(root.path(), &["a", "b"]);
    drop(open(&both, Access::Write));
    for folder in &both {
        let store = open(std::slice::from_ref(folder), Access::Write);
        (0..20).for_each(|number| put(&store, number).unwrap());
        assert_eq!(store.commit().0.len(), 20);
    }
    let store = open(&both, Access::Write);
    let mut told = Vec::new();
    let mut room = KeepRoom {
        watermarks: Watermarks::new(2, 1).unwrap(),
        budgets: &Budgets::default(),
        may_leave: &mut |_| true,
        leaving: &mut |keys| told.extend_from_slice(keys),
    };
    let (left, _) = store.keep_room(&mut room);
    assert!(left > told.len(), "{left} left, {} told", told.len());
    assert!(told.iter().all(|key| store.find(key).is_none()));
    let there = (0..20).filter(|number| store.find(&key(*number)).is_some()).count();
    assert_eq!(there + told.len(), 20);
}

/// DRIVE-S1.
#[test]
fn a_block_is_read_from_the_folder_whose_device_works() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let both = folders(root.path(), &["a", "b"]);
    let faults = Faults::of_folder(&both[0].path);
    drop(open(&both, Access::Write));
    for folder in &both {
        let store = open(std::slice::from_ref(folder), Access::Write);
        put(&store, 1).unwrap();
        assert_eq!(store.commit().0.len(), 1);
    }
    let store = open(&both, Access::Write);
    faults.plan(Some(Call::ReadPayload), 0, u64::MAX, Fault::Error(libc::EIO));
    let failed = (0..5).take_while(|_| get(&store, 1).is_err()).count();
    assert_eq!(failed, 3, "then the device is marked");
    assert_eq!(store.block(&key(1)).unwrap().0, 1);
    assert_eq!(get(&store, 1).unwrap(), payload(1));
}

#[test]
fn blocks_that_a_collection_made_durable_are_told_though_a_later_commit_fails() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folders(root.path(), &["a"]);
    let faults = Faults::of_folder(&folder[0].path);
    let store = open(&folder, Access::Write);
    put(&store, 1).unwrap();
    store.volume(0).unwrap().collect(90).unwrap();
    put(&store, 2).unwrap();
    faults.plan(Some(Call::Write), 0, 1, Fault::Error(libc::EIO));
    let (keys, errors) = store.commit();
    assert_eq!((keys, errors.len()), (vec![key(1)], 1));
    assert_eq!(get(&store, 1).unwrap(), payload(1));
}

#[test]
fn files_are_for_this_user_alone() {
    use std::os::unix::fs::MetadataExt as _;
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folders(root.path(), &["a"]);
    let store = open(&folder, Access::Write);
    put(&store, 1).unwrap();
    assert_eq!(store.commit().0.len(), 1);
    let files = std::fs::read_dir(&folder[0].path).unwrap().map(|entry| entry.unwrap());
    let modes: Vec<_> =
        files.map(|file| (file.file_name(), file.metadata().unwrap().mode() & 0o777)).collect();
    assert!(modes.len() >= 4, "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
}
