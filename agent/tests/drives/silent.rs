//! A drive that does not answer: the other drives of the host go on, and clears reach them.

use kv_drive::io::faulty::{Call, Fault, Faults};

use super::*;

/// An agent with two folders.
fn both(region: &ScratchRegion, first: &TempDir, second: &TempDir) -> Agent {
    let mut both = settings(region, A, first.path());
    both.drives.push(DriveFolder { path: second.path().to_owned(), ..both.drives[0].clone() });
    both.backup.silent_ms = 100;
    Agent::start(both).unwrap()
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
    assert_eq!(clear(&pool, 1000), [NodeId(A)], "the silent drive owes it");
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
