//! What could not be done is done later: blocks that a drive refused, or that the directory had no room
//! for.

use rackline_agent::RefusedBy;

use super::*;

fn refused(agent: &Agent, why: RefusedBy) -> u64 {
    let at = RefusedBy::ALL.iter().position(|it| *it == why).unwrap();
    agent.figures().refused[at]
}

#[test]
fn blocks_that_a_drive_refused_or_lost_are_tried_again() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let faults = Faults::of_folder(folder.path());
    let agent = start(&region, A, &folder);
    let pool = Pool::attach(region.path(), A).unwrap();
    faults.plan(Some(Call::Create), 0, 3, Fault::Error(libc::ENOSPC));
    publish(&pool, 0..8);
    wait_until("the device is full", || refused(&agent, RefusedBy::Full) > 0);
    wait_until("it has room again", || agent.figures().announced == 8);
    // A commit that fails: its blocks are counted, and written again.
    faults.plan(Some(Call::Sync), 0, 1, Fault::Error(libc::EIO));
    publish(&pool, 100..104);
    wait_until("its blocks are lost", || refused(&agent, RefusedBy::NotDurable) > 0);
    wait_until("they are written again", || agent.figures().announced == 12);
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 12);
}

#[test]
fn blocks_that_the_directory_had_no_room_for_are_announced_later() {
    let region = ScratchRegion::create_with_drives(16 << 20, 2, 64 << 10, 2 << 20).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let agent = start(&region, A, &folder);
    let pool = Pool::attach(region.path(), A).unwrap();
    publish(&pool, 0..200);
    let is_stable = |agent: &Agent| {
        let figures = agent.figures();
        figures.announced + figures.unannounced == figures.blocks
    };
    wait_until("the directory is full", || {
        agent.figures().backed_up == 200 && agent.figures().unannounced > 0 && is_stable(&agent)
    });
    let announced = agent.figures().announced;
    assert!((16..150).contains(&announced), "{announced}");
    agent.stop().unwrap();
    // Most blocks leave: the others have room then.
    let mut small = settings(&region, A, folder.path());
    small.backup.watermarks = Watermarks::new(2, 1).unwrap();
    let agent = Agent::start(small).unwrap();
    wait_until("the blocks that stayed are announced", || {
        let figures = agent.figures();
        figures.evicted > 0 && figures.blocks > 0 && figures.unannounced == 0 && is_stable(&agent)
    });
    agent.stop().unwrap();
}
