//! A drive that does not answer: the other drives of the host go on, and clears reach them.

use super::*;

/// An agent with two folders.
fn both(region: &ScratchRegion, first: &TempDir, second: &TempDir) -> Agent {
    let mut both = settings(region, A, first.path());
    both.drives.push(DriveFolder { path: second.path().to_owned(), ..both.drives[0].clone() });
    both.backup.silent_ms = 100;
    Agent::start(both).unwrap()
}

/// The drives that owe a clear of the tenant after a second.
fn owed(pool: &Pool) -> Vec<(NodeId, Vec<u32>)> {
    let tenant = Namespace::new("tenant", b"");
    let cleared = pool.clear(Some(&tenant), std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(cleared.unanswered, []);
    cleared.drives_owing
}

/// AGENT-C4.
#[test]
fn a_table_that_cannot_be_read_owes_its_blocks_alone() {
    let (region, [first, second]) = (region(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let agent = both(&region, &first, &second);
    let pool = Pool::attach(region.path(), A).unwrap();
    publish(&pool, 0..160);
    wait_until("the blocks are backed up", || agent.figures().announced == 160);
    agent.stop().unwrap();
    let before = blocks_in(second.path());
    let names = std::fs::read_dir(second.path()).unwrap().map(|entry| entry.unwrap().path());
    let table = names.into_iter().find(|path| path.to_string_lossy().contains(".table-")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let kept = elsewhere.path().join("table");
    std::fs::rename(&table, &kept).unwrap();
    std::fs::create_dir(&table).unwrap();

    let agent = both(&region, &first, &second);
    wait_until("the other tables are read", || agent.figures().announced > 0);
    assert_eq!(owed(&pool), [(NodeId(A), vec![2])]);
    wait_until("what is known is withdrawn", || agent.figures().announced == 0);
    agent.stop().unwrap();
    let cache = pool.cache();
    let (member, node) = (cache.member(), NodeId(A));
    let seen = kv_cache::agent_of(member.fabric(), member.superblock(), member.layout(), node);
    assert!(seen.unwrap().is_some_and(|seen| seen.line.is_unread), "it does not know how many");
    std::fs::remove_dir(&table).unwrap();
    std::fs::rename(&kept, &table).unwrap();
    let left = blocks_in(second.path());
    assert_eq!(blocks_in(first.path()), 0);
    assert!(left > 0 && left < before, "{left} of {before}: those of the table alone");

    let agent = both(&region, &first, &second);
    wait_until("it catches up", || agent.is_ready());
    assert_eq!((owed(&pool), agent.figures().announced), (vec![], 0));
    agent.stop().unwrap();
    assert_eq!(blocks_in(second.path()), 0);
}

/// AGENT-B6.
#[test]
fn a_write_that_hangs_keeps_neither_backups_nor_clears_waiting() {
    let (region, [first, second]) = (region(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let faults = Faults::of_folder(second.path());
    let agent = both(&region, &first, &second);
    let pool = Pool::attach(region.path(), A).unwrap();
    publish(&pool, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced == 20);
    faults.plan(Some(Call::WritePayload), 0, 1, Fault::Delay);
    publish(&pool, 100..120);
    wait_until("a write is given up", || agent.figures().given_up == 1);
    let before = agent.figures().announced;
    publish(&pool, 200..210);
    wait_until("the other drive takes the next blocks", || {
        agent.figures().announced >= before + 10
    });
    assert_eq!(owed(&pool), [(NodeId(A), vec![2])], "the silent drive owes it");
    let keys: Vec<_> = (0..20).chain(200..210).map(key).collect();
    assert!(on_drives(&pool, &keys).is_empty() && pool.cache().present(&keys) == [false; 30]);
    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    assert_eq!(restore(&pool, A, &requests), [RestoreOutcome::Unknown; 30]);
    // The write that hung ends: its block is not kept.
    assert_eq!(faults.release(), 1);
    wait_until("the clear is carried out", || clear(&pool, 1000).is_empty());
    publish(&pool, 300..310);
    wait_until("later blocks are backed up", || agent.figures().announced == 10);
    agent.stop().unwrap();
    assert_eq!(blocks_in(first.path()) + blocks_in(second.path()), 10);
}
