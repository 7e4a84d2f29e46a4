//! The litmus programs with a process of another node: the two find each other over the region.
//!
//! Each takes a chunk and greets in it: a nonce of its own, and the nonce that it read in the
//! other's greeting. They have met when each has read its own nonce there: what an earlier
//! measurement left cannot hold it. The side that starts first waits.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytemuck::{Pod, Zeroable};

use super::measured::{Measured, run_all};
use super::party::{Party, Role, Silent};
use super::probe::Probe;
use super::scratch::{self, GREETING_LINES, STRIDE_LINES, ScratchError};
use super::timing::Timing;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::{OwnedArea, OwnedLine, PeerArea, Record};
use cxl_shm::node::{Backend, Member};
use cxl_shm::region::hypervisor;
use cxl_shm::units::{ChunkId, NodeId};

/// The other side of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partner {
    /// Its node.
    pub node: NodeId,
    /// Whether it runs on another host than this process.
    pub other_host: bool,
    /// Whether one of the two says that it is a virtual machine. Two virtual machines of one
    /// machine, or one and the machine itself, share its caches: they show nothing about a device
    /// between hosts.
    pub virtual_machine: bool,
    /// Rounds of each program: the fewer of what the two were asked for.
    pub rounds: u64,
}

/// Why a pair measured nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PairError {
    /// The partner is this very node.
    #[error("node {node} cannot be paired with itself: give the number of the other host's node")]
    Itself {
        /// The node.
        node: NodeId,
    },
    /// There was no chunk to measure in, or it was not given back.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// The other side did not come.
    #[error(
        "node {partner} did not answer within {timeout_ms} ms: run `rackline qualify` on it too, \
         with --pair-with {node}"
    )]
    Absent {
        /// Who did not come.
        partner: NodeId,
        /// This node.
        node: NodeId,
        /// How long was waited.
        timeout_ms: u64,
    },
    /// The other side came, and went away.
    #[error(transparent)]
    Silent(#[from] Silent),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
struct Greeting {
    nonce: u64,
    /// The nonce of the other one, once it was read.
    seen: u64,
    rounds: u64,
    /// 1 of a virtual machine.
    virtual_machine: u64,
    reserved: [u64; 3],
}

impl Record for Greeting {
    const KIND: u32 = u32::from_le_bytes(*b"GREE");
}

/// Runs the litmus programs together with a process of node `partner` that does the same.
///
/// Takes a chunk of the region meanwhile. Waits up to `timeout_ms` for the other one, and as long
/// at every step.
///
/// # Errors
/// [`PairError`].
pub fn pair<B: Backend<Fabric: Probe>>(
    member: &Member<B>,
    partner: NodeId,
    rounds: u64,
    timeout_ms: u64,
) -> Result<(Measured, Partner), PairError> {
    let node = member.node();
    if partner == node {
        return Err(PairError::Itself { node });
    }
    let clock = SystemClock::start();
    let chunk = scratch::take(member, &clock, timeout_ms)?;
    let outcome = measure(member, partner, chunk, rounds, timeout_ms, &clock);
    member.free_chunk(&clock, timeout_ms, chunk).map_err(ScratchError::from)?;
    outcome
}

fn measure<B: Backend<Fabric: Probe>>(
    member: &Member<B>,
    partner: NodeId,
    chunk: ChunkId,
    rounds: u64,
    timeout_ms: u64,
    clock: &SystemClock,
) -> Result<(Measured, Partner), PairError> {
    let area = scratch::own_area(member, chunk, 0)?;
    let [greeting, mine] = PARTS.map(|(first, lines)| {
        area.part(first, lines).expect("an area of a party is longer than its greeting")
    });
    // Before the partner can find us: what an earlier owner of the chunk left is no step of ours.
    Party::<B::Fabric, SystemClock>::clear(member.fabric(), mine);
    let timing = Timing::measure(member.fabric(), own_lines(mine), clock);
    let greeting = greeting.line(0).expect("lines of a greeting");
    let (theirs, rounds, virtual_machine) =
        meet(member, partner, &greeting, rounds, timeout_ms, clock)?;

    let role = if member.node() < partner { Role::First } else { Role::Second };
    let fabric = member.fabric().clone();
    let mut party = Party::new(fabric, role, mine, theirs, clock, timeout_ms);
    let findings = run_all(&mut party, rounds)?;
    let other_host = on_another_host(member, partner);
    let hosts = if other_host { 2 } else { 1 };
    let measured = Measured { findings, hosts, timing, cores: None };
    Ok((measured, Partner { node: partner, other_host, virtual_machine, rounds }))
}

/// Greets until the partner has answered: its lines, the rounds that both run, and whether one of
/// the two is a virtual machine.
fn meet<B: Backend<Fabric: Probe>>(
    member: &Member<B>,
    partner: NodeId,
    own: &OwnedLine<Greeting>,
    rounds: u64,
    timeout_ms: u64,
    clock: &impl Clock,
) -> Result<(PeerArea, u64, bool), PairError> {
    let fabric = member.fabric();
    // Random enough that no greeting of the past holds it.
    let nonce = RandomState::new().build_hasher().finish();
    let virtual_machine = hypervisor() != 0;
    let mut said = Greeting {
        nonce,
        seen: 0,
        rounds,
        virtual_machine: virtual_machine.into(),
        reserved: [0; 3],
    };
    own.publish(fabric, &said);
    let until_ms = clock.now_ms().saturating_add(timeout_ms);
    loop {
        for area in scratch::areas_of(member, partner) {
            let [greeting, lines] = PARTS.map(|(first, lines)| {
                area.part(first, lines).expect("an area of a party is longer than its greeting")
            });
            let Some(Ok(heard)) = greeting.line::<Greeting>(0).map(|line| line.fresh(fabric))
            else {
                continue;
            };
            if heard.seen == nonce {
                // It has read our nonce; once more ours, so that it can end its wait too.
                said.seen = heard.nonce;
                own.publish(fabric, &said);
                let virtual_machine = virtual_machine || heard.virtual_machine != 0;
                return Ok((lines, rounds.min(heard.rounds), virtual_machine));
            }
            if heard.nonce != said.seen {
                said.seen = heard.nonce;
                own.publish(fabric, &said);
            }
        }
        if clock.now_ms() >= until_ms {
            return Err(PairError::Absent { partner, node: member.node(), timeout_ms });
        }
        // Nothing is urgent before the two have met.
        clock.pause(LONG_PAUSE_TRIES);
    }
}

/// Tries in vain after which a clock sleeps rather than spins.
const LONG_PAUSE_TRIES: u32 = 1024;

/// Whether the partner's kernel is another than this node's. Both have joined: their lines say.
fn on_another_host<B: Backend<Fabric: Probe>>(member: &Member<B>, partner: NodeId) -> bool {
    let boot_of = |node| member.layout().node_line(node).fresh(member.fabric()).ok();
    match (boot_of(member.node()), boot_of(partner)) {
        (Some(own), Some(other)) => own.boot_id() != other.boot_id(),
        // What cannot be read is no evidence.
        _ => false,
    }
}

/// The greeting of a party's area, and its lines for programs: the first line, and how many.
const PARTS: [(u64, u64); 2] =
    [(0, GREETING_LINES), (GREETING_LINES, STRIDE_LINES - GREETING_LINES)];

/// The last line of a party, which no program uses before both have met.
fn own_lines(area: OwnedArea) -> OwnedArea {
    area.part(area.lines() - 1, 1).expect("an area has a last line")
}
