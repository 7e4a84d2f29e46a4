//! Named roots that are destroyed, and their entries used again, under the eyes of hosts whose
//! caches hold the table as it was.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::LockProtocol;
use cxl_shm::units::{LineRange, WordOffset};
use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use cxl_shm_objects::{PutRootError, RootKind};

use super::bed::cluster;
use crate::rack::{Cluster, Mutant, RackMember};
use crate::stepped::stepped;

const TIMEOUT_MS: u64 = 1000;

/// Allocates a line and names it.
fn name(cluster: &Cluster, member: &RackMember, name: &str) {
    let clock = cluster.clock(usize::from(member.node().0));
    let object = member.allocate(&clock, TIMEOUT_MS, 64).unwrap_or_else(|e| panic!("{e}"));
    let put = member.put_root(&clock, TIMEOUT_MS, name, object.offset(), RootKind::Leaf);
    put.unwrap_or_else(|error| panic!("{error}"));
}

fn destroy(cluster: &Cluster, member: &RackMember, name: &str) {
    let clock = cluster.clock(usize::from(member.node().0));
    let destroyed = member.destroy_root(&clock, TIMEOUT_MS, name);
    destroyed.unwrap_or_else(|error| panic!("{error}"));
}

/// Two hosts destroy roots of a third: its next look frees the objects, whatever it knew of the
/// table.
///
/// # Panics
/// When it does not.
pub fn destroyed_roots_are_collected_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [one, owner, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let clock = cluster.clock(1);
    for round in 0..2 {
        ["first", "second"].iter().for_each(|it| name(&cluster, &owner, it));
        // From here on its caches hold a table in which both live.
        cluster.warm();
        destroy(&cluster, &one, "first");
        destroy(&cluster, &other, "second");
        let served = owner.answer_chunk_requests(&clock, TIMEOUT_MS);
        served.unwrap_or_else(|error| panic!("{error}"));
        let left = owner.heap_usage(&clock).map(|usage| usage.objects);
        assert_eq!(left, Ok(0), "round {round}: objects of destroyed roots are left");
        cluster.warm();
    }
    cluster.check_writers();
}

/// A root takes the entry of a former one: a host that knows the former finds the new one with its
/// first look, as it does when it knows the new one already.
///
/// # Panics
/// When it has to look again.
pub fn a_root_is_found_at_the_first_look(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    let fabric = stepped(cluster.rack.host(0));
    let reader = cluster.join_over(fabric.clone(), &cluster.clock(0), 0, 0, "reader");
    let reader = reader.unwrap_or_else(|error| panic!("{error}"));
    let steps = || {
        fabric.interposer().interrupt_at(1, || ());
        assert!(reader.root("name").is_ok_and(|root| root.is_some()), "it was put");
        fabric.interposer().steps()
    };
    name(&cluster, &owner, "name");
    for round in 0..2 {
        cluster.warm();
        let known = steps();
        destroy(&cluster, &owner, "name");
        // Of another heap, so that the whole line of the name is another's too.
        name(&cluster, if round == 0 { &other } else { &owner }, "name");
        assert_eq!(steps(), known, "round {round}: it was looked for more than once");
        destroy(&cluster, if round == 0 { &other } else { &owner }, "name");
        name(&cluster, &owner, "name");
    }
    cluster.check_writers();
}

/// A host names an object. The caches of another host hold a table without that name, and that host
/// gives the same name to an object of its own: it is refused.
///
/// # Panics
/// When two objects have one name.
pub fn a_name_is_given_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    // Both hosts have built their heaps now: building a heap reads the roots.
    name(&cluster, &owner, "of the owner");
    name(&cluster, &other, "of the other");
    let clock = cluster.clock(2);
    let object = other.allocate(&clock, TIMEOUT_MS, 64).unwrap_or_else(|e| panic!("{e}"));
    cluster.warm();
    name(&cluster, &owner, "name");
    let put = other.put_root(&clock, TIMEOUT_MS, "name", object.offset(), RootKind::Leaf);
    assert_eq!(put, Err(PutRootError::Exists { name: "name".to_owned() }));
    cluster.check_writers();
}

/// A host stores into a named object of another host, without publishing it, and destroys the root.
/// Its stores are on the device before the owner uses the place for the next object (MEM-M1).
///
/// # Panics
/// When they are not.
pub fn a_destroyed_root_takes_its_stores_along(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [owner, destroyer] = [1, 2].map(|host| cluster.join(host, "worker"));
    let clock = cluster.clock(1);
    let allocate = || owner.allocate(&clock, TIMEOUT_MS, 64).unwrap_or_else(|e| panic!("{e}"));
    let object = allocate();
    let put = owner.put_root(&clock, TIMEOUT_MS, "it", object.offset(), RootKind::Leaf);
    put.unwrap_or_else(|error| panic!("{error}"));
    destroyer.take_over(object.offset()).unwrap_or_else(|error| panic!("{error}"));
    let word = WordOffset::new(object.offset().bytes()).expect("objects begin with a line");
    // As a C program does, through its pointer.
    destroyer.fabric().store(word, 1);
    destroy(&cluster, &destroyer, "it");
    let served = owner.answer_chunk_requests(&clock, TIMEOUT_MS);
    served.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(allocate().offset(), object.offset(), "its place is the next object's");
    owner.fabric().store(word, 2);
    owner.fabric().publish(LineRange::one(word.line()));
    cluster.check_writers();
}
