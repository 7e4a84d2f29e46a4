//! Real processes: all of a node's processes are killed, or stopped; it is declared dead, fenced,
//! recovered, and its slot is joined again.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::process::{Child, Stdio};

use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::ProcessSlot;
use cxl_shm::layout::read_superblock;
use cxl_shm::lifecycle::{Attachment, Reclaimer};
use cxl_shm::region::Region;
use cxl_shm::units::NodeId;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use pool::Pool;

/// How often a state is looked for before the test has failed. Each look takes up to 1.5 s.
const LOOKS: u32 = 200;

struct Rack {
    pool: Pool,
}

impl Rack {
    fn new() -> Self {
        Self { pool: Pool::format_in("/dev/shm") }
    }

    fn manager(&self, node: &str, fence: &[&str]) -> Process {
        self.manager_with_log(node, fence, Stdio::null())
    }

    fn manager_with_log(&self, node: &str, fence: &[&str], log: impl Into<Stdio>) -> Process {
        let mut command = self.pool.rackline(&["lock-manager", "--node", node]);
        command.args(fence).args(["--declare-ms", "1500"]).stderr(log);
        Process(command.spawn().unwrap())
    }

    fn status(&self) -> Value {
        let output = self.pool.rackline(&["status", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What `status` says of a node; null when it has not joined.
    fn node(&self, node: u16) -> Value {
        let status = self.status();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().find(|it| it["node"] == node).cloned().unwrap_or(Value::Null)
    }

    fn wait_for_state(&self, node: u16, state: &str) -> Value {
        for _ in 0..LOOKS {
            let found = self.node(node);
            if found["state"] == state {
                return found;
            }
            SystemClock::start().sleep_ms(20);
        }
        panic!("node {node} is not {state}: {}", self.status());
    }

    fn wait_until_served_by(&self, node: u16) {
        for _ in 0..LOOKS {
            let status = self.status();
            let manager = &status["lock_manager"];
            if manager["node"] == node && manager["serving"] == true && manager["alive"] == true {
                return;
            }
            SystemClock::start().sleep_ms(20);
        }
        panic!("no lock manager serves on node {node}: {}", self.status());
    }
}

struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Whether it has ended, and how: the signal that killed it.
    fn killed_by(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        self.0.wait().unwrap().signal()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // In order, so that it leaves nothing in /dev/shm; a dead one is only reaped.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = kill_process(Pid::from_child(&self.0), Signal::CONT);
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_node_is_recovered_and_its_slot_joined_again() {
    let rack = Rack::new();
    let _manager = rack.manager("0", &[]);
    rack.wait_until_served_by(0);
    let victim = rack.manager("1", &[]);
    rack.wait_for_state(1, "joined");
    victim.signal(Signal::KILL);
    let dead = rack.wait_for_state(1, "dead");
    assert_eq!(
        (&dead["death"]["recoverer"], &dead["death"]["recovered"]),
        (&0.into(), &true.into())
    );
    assert_eq!(rack.status()["membership_epoch"], 1);
    let _heir = rack.manager("1", &[]);
    let joined = rack.wait_for_state(1, "joined");
    assert_eq!(joined["incarnation"], 2);
}

#[test]
fn the_dead_manager_s_node_is_recovered_by_the_standby() {
    let rack = Rack::new();
    let manager = rack.manager("0", &[]);
    rack.wait_until_served_by(0);
    let _standby = rack.manager("1", &[]);
    rack.wait_for_state(1, "joined");
    manager.signal(Signal::KILL);
    rack.wait_for_state(0, "dead");
    rack.wait_until_served_by(1);
}

#[test]
fn a_stopped_node_is_killed_before_it_is_recovered_and_the_log_says_so() {
    let rack = Rack::new();
    let log = rack.pool.path().with_file_name("log");
    let _manager = rack.manager_with_log("0", &[], std::fs::File::create(&log).unwrap());
    rack.wait_until_served_by(0);
    let mut victim = rack.manager("1", &[]);
    rack.wait_for_state(1, "joined");
    victim.signal(Signal::STOP);
    rack.wait_for_state(1, "dead");
    assert_eq!(victim.killed_by(), Some(Signal::KILL.as_raw()));
    let log = std::fs::read_to_string(&log).unwrap();
    // A process is in the registry once for each of its threads.
    let killed = log.lines().find(|line| line.contains("kills all processes")).expect(&log);
    let pid = victim.0.id().to_string();
    assert!(killed.contains(&pid) && killed.contains("its heartbeat stopped"), "{log}");
}

#[test]
fn a_lock_manager_waits_for_no_other_process_of_its_host() {
    let rack = Rack::new();
    let _manager = rack.manager("0", &[]);
    rack.wait_until_served_by(0);
    let attachment = Attachment::attach(&rack.pool.path(), 0).unwrap();
    let (member, clock) = (attachment.member(), SystemClock::start());
    // What a reclaimer left that died is being written back, and there is no end of it.
    let busy = member.lock_orphan(&clock);
    let gone = Reclaimer {
        orphan: NodeId(1),
        process: ProcessSlot(200),
        incarnation: member.incarnation(),
    };
    member.reclaimer_word().publish(member.fabric(), gone.word());
    let beat = || member.manager_seen().unwrap().heartbeat;
    // Far longer than it is between two looks after the dead.
    for _ in 0..20 {
        let before = beat();
        clock.sleep_ms(100);
        assert!(
            (0..LOOKS).any(|_| {
                clock.sleep_ms(10);
                beat() != before
            }),
            "it grants nothing any more"
        );
    }
    assert_eq!(member.reclaimer_word().own(member.fabric()), gone.word());
    drop(busy);
    assert!(
        (0..LOOKS).any(|_| {
            clock.sleep_ms(20);
            member.reclaimer_word().own(member.fabric()) == 0
        }),
        "it does not look after the dead of its host"
    );
}

#[test]
fn without_a_fence_an_operator_confirms() {
    let rack = Rack::new();
    let none = ["--fence", "none"];
    let _manager = rack.manager("0", &none);
    rack.wait_until_served_by(0);
    let fence = |node| {
        let output = rack.pool.rackline(&["fence", "--confirm-off", "--node", node]);
        let mut output = output;
        output.output().unwrap()
    };
    let early = fence("1");
    let message = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(!early.status.success() && message.contains("was not declared dead"), "{message}");

    let mut victim = rack.manager("1", &none);
    rack.wait_for_state(1, "joined");
    victim.signal(Signal::STOP);
    let quarantined = rack.wait_for_state(1, "quarantined");
    assert_eq!(quarantined["death"]["recoverer"], 0);
    // It wakes, sees it, and ends by itself with an error; leaving in order frees its slot.
    victim.signal(Signal::CONT);
    rack.wait_for_state(1, "left");
    assert!(victim.killed_by().is_none());

    let mut victim = rack.manager("2", &none);
    rack.wait_for_state(2, "joined");
    victim.signal(Signal::KILL);
    victim.killed_by();
    rack.wait_for_state(2, "quarantined");
    let confirmed = fence("2");
    assert!(confirmed.status.success(), "{}", String::from_utf8_lossy(&confirmed.stderr));
    rack.wait_for_state(2, "dead");
}

#[test]
fn numbers_that_come_to_their_end_are_told_of_with_what_to_do() {
    let rack = Rack::new();
    assert_eq!(rack.status()["numbers_ending"], Value::Array(Vec::new()));
    // A lock manager on node 0 that has started very often: this is the last term, and divided by
    // three nodes nothing remains.
    let region = Region::open(&rack.pool.path(), None).unwrap();
    let (_, layout) = read_superblock(region.fabric()).unwrap();
    let term = (1 << 24) - 1;
    let claim = layout.manager_claim(NodeId(0)).range();
    region.fabric().store(claim.start().word(0).unwrap(), term << 1);
    region.fabric().publish(claim);
    let status = rack.status();
    let terms = &status["numbers_ending"][0];
    assert_eq!((&terms["number"], &terms["left"]), (&"terms".into(), &0.into()), "{status}");
    let lines = rack.pool.rackline(&["status"]).output().unwrap();
    let lines = String::from_utf8_lossy(&lines.stdout).into_owned();
    assert!(lines.contains("ends soon: terms of lock managers: 0 of"), "{lines}");
    assert!(lines.contains("rackline format --force"), "{lines}");
}

/// An operator is told which host is meant: a host that joined under a number and died before it
/// had published its name, and not the one that had the number before, which may be off.
#[test]
fn a_host_that_died_during_admission_is_not_called_by_the_name_before_it() {
    let rack = Rack::new();
    let _manager = rack.manager("0", &["--fence", "none"]);
    rack.wait_until_served_by(0);
    let before = rack.manager("1", &["--fence", "none"]);
    let name = rack.wait_for_state(1, "joined")["host"].as_str().unwrap().to_owned();
    drop(before);
    rack.wait_for_state(1, "left");
    // A mark for the second life, of a host that nobody knows.
    let region = Region::open(&rack.pool.path(), None).unwrap();
    let (_, layout) = read_superblock(region.fabric()).unwrap();
    let join_marks = layout.join_marks(NodeId(1));
    region.fabric().store(join_marks.start().word(0).unwrap(), 7 << 32 | 2);
    region.fabric().publish(join_marks);

    let quarantined = rack.wait_for_state(1, "quarantined");
    assert_eq!((&quarantined["host"], &quarantined["incarnation"]), (&"unknown".into(), &2.into()));
    let lines = rack.pool.rackline(&["status"]).output().unwrap();
    let lines = String::from_utf8_lossy(&lines.stdout).into_owned();
    let told = lines.lines().find(|line| line.starts_with("node 1:")).unwrap().to_owned();
    let fence = rack.pool.rackline(&["fence", "--confirm-off", "--node", "1"]).output().unwrap();
    let confirmed = String::from_utf8_lossy(&fence.stdout).into_owned();
    assert!(fence.status.success(), "{}", String::from_utf8_lossy(&fence.stderr));
    for text in [told, confirmed] {
        let whom = "died while joining (nothing says which)";
        assert!(text.contains(whom) && !text.contains(&format!("\"{name}\"")), "{text}");
    }
    rack.wait_for_state(1, "dead");
}
