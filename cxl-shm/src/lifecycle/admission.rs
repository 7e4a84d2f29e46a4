//! Admission to a node slot: when several hosts want one slot at the same moment, at most one gets
//! it.
//!
//! No host owns the lines of a slot that was left, so no line says who may write them next. Each
//! joining host announces itself in words that are a line each, looks, and looks again (Lamport's
//! fast mutual exclusion, also known as a splitter). One is the *claim word* of the slot, the
//! others are the *join marks*, one for each host:
//!
//! ```text
//! claim word := me         publish {token, incarnation}      one word that any joining host writes
//! look at the marks        one beyond the slot's incarnation is another host's? --> closed
//! mark := me               publish {host, incarnation}       one word for each host
//! look at the claim word   still mine? --> admitted
//!                          not mine, or the mark is not mine? --> mark restored; overtaken
//! ```
//!
//! - **JOIN-J1** The claim word is the one word that several hosts write (an exception to MEM-M1).
//!   Its line holds nothing else, so a host that writes the line back restores no old value of
//!   another word. Each store takes effect once, before its publish ends. Nothing more is relied
//!   on. A host that slept before it stored its claim, perhaps for a whole life of the slot, may
//!   overwrite the claim of another host. That keeps the other host out, and admits nobody. One
//!   process uses one token, so a claim that is still mine was not overwritten since.
//! - **JOIN-J2** A mark has one writing host (MEM-M1): the host whose name it holds. The name has
//!   32 bits, made of the host and the incarnation. The line beside the mark is published before it
//!   and identifies the host in full. A mark that is damaged, or does not match its line, belongs
//!   to an unknown host: a host may be there, and no machine is fenced for it. A host uses the mark
//!   with its own name. A host that never joined before uses the mark with the smallest
//!   incarnation. An admitted host leaves its mark in place, so the mark still tells of its life
//!   when that is over. A host that was not admitted restores the former value.
//! - **JOIN-J3** Of two hosts that are admitted to the same life of the slot, one wrote the claim
//!   word last. That host looked at the marks afterwards. The other host's mark was there already,
//!   because the other host saw its own claim after it had published its mark. So the last to write
//!   the claim word was not admitted.
//! - **JOIN-J4** A host that dies between its mark and the line of the slot leaves the slot closed.
//!   Another process of the same host may continue, because it recognises the mark. No second
//!   process of that host competes with it: each joining process holds the lock of the host tier.
//!   (A process that uses another file system for its tiers counts as another host.) All other
//!   hosts stay out, and so does the same machine after a reboot: before admission no heartbeat
//!   need advance, and images of one installation share a machine id, so the mark may belong to a
//!   machine that is just joining. For all others the life of that incarnation has died. Its
//!   heartbeat has stopped, so a lock manager declares it dead and has the host of the mark fenced.
//!   The recovery ends with the line of the slot (DEATH-R1 to DEATH-R5). A joining host that was
//!   declared dead, and had only slept, may restore the mark, or continue and fence itself. No host
//!   joins into a life that was declared dead.
//!
//! One case is left to chance: two hosts that join at the same moment choose the same one of
//! sixteen marks. This takes a host that joins for the first time since it booted. The other host
//! does so too, or it returns, and its mark is the oldest while all sixteen are in use. Then the
//! first host to publish its mark finds the mark gone. Or the second host, which slept before it,
//! erases the mark when it is overtaken. When the second host tries again, or a third host comes,
//! it finds the slot open until the first host has published its line.

use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::{JOIN_MARKS, JoinMarkHost, Layout};
use crate::mutant::{self, Mutant};
use crate::node::{Call, Mark, Marks, name_of};
use crate::units::{Incarnation, NodeId};

/// Why a host was not admitted. Nothing is left of its attempt but its claim, which means nothing,
/// and, beside a mark that belonged to no host, a line that identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Refused {
    /// Another comes, or is in.
    Closed,
    /// Another came in the same moment.
    Overtaken,
}

/// A process that wants to join as the node of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct JoinAttempt {
    node: NodeId,
    /// No other process has it.
    token: u32,
    /// Its host: the same when another process of it comes, over the same tiers.
    host: JoinMarkHost,
}

/// What a joining process saw of the slot before it wrote the claim word.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlotSnapshot {
    /// The last life of the slot, as its line says.
    said: Incarnation,
    /// The place of the mark that is ours, and what it is.
    mark: (u64, Mark),
    /// The incarnation for which this very host has come last.
    own: Incarnation,
    /// Another host comes, or is in.
    closed: bool,
}

impl SlotSnapshot {
    /// The last life of the slot, and whether it is one of this very host that died during
    /// admission.
    pub(crate) fn last(&self) -> (Incarnation, bool) {
        (self.own.max(self.said), self.own > self.said)
    }

    /// Whether there is no need to claim the slot: another host comes, or is in.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

impl JoinAttempt {
    /// `process` of `host`, which comes for the slot of `node`.
    pub(crate) fn new(node: NodeId, host: &HostIdentity, process: ProcessIdentity) -> Self {
        let namespace = host.pid_namespace;
        let host = JoinMarkHost::new(host.boot_id, host.machine_id, host.tier_device);
        let token = name_of(&[&host.words()[..], &[namespace, process.word()]].concat());
        Self { node, token, host }
    }

    /// Looks at the join marks of the slot, whose line says that `said` is its last life.
    pub(crate) fn look<F: Fabric>(
        &self,
        layout: &Layout,
        fabric: &F,
        said: Incarnation,
    ) -> SlotSnapshot {
        let Marks(marks) = Marks::fresh(layout, fabric, self.node);
        let first = u64::from(name_of(&self.host.words())) % JOIN_MARKS;
        let distance = |place: u64| (place + JOIN_MARKS - first) % JOIN_MARKS;
        // JOIN-J2.
        let own = (0..).zip(&marks).min_by_key(|(place, mark)| {
            (!self.is_mine(mark), mark.call.incarnation, distance(*place))
        });
        let (place, mark) = own.expect("a slot has marks");
        let (ours, others): (Vec<&Mark>, Vec<&Mark>) =
            marks.iter().partition(|mark| self.is_mine(mark));
        let own = ours.iter().map(|mark| mark.call.incarnation).max();
        let closed = others.iter().any(|mark| mark.call.incarnation > said);
        SlotSnapshot { said, mark: (place, *mark), own: own.unwrap_or(Incarnation(0)), closed }
    }

    /// Tries to be admitted to life `next` of the slot, after a look at its marks.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn try_claim<F: Fabric>(
        &self,
        layout: &Layout,
        fabric: &F,
        snapshot: &SlotSnapshot,
        next: Incarnation,
    ) -> Result<(), Refused> {
        let (place, _) = snapshot.mark;
        let claim = Call { who: self.token, incarnation: next }.word();
        // MEM-M1: JOIN-J1.
        layout.claim_word(self.node).claim().publish(fabric, claim);
        let again = self.look(layout, fabric, snapshot.said);
        if again != *snapshot {
            return Err(Refused::Closed);
        }
        self.record_identity(layout, fabric, snapshot);
        // MEM-M1: JOIN-J2.
        let mark = layout.join_mark(self.node, place).claim();
        let mine = Call::of(&self.host, next);
        mark.publish(fabric, mine.word());
        crash::reach(CrashPoint::JoinMarked);
        let host = layout.join_mark_host(self.node, place);
        let word = layout.claim_word(self.node);
        refresh_all(fabric, [word.range(), mark.peer().range(), host.range()]);
        let marked = Call::from_word(mark.own(fabric));
        let still = word.cached(fabric) == claim && marked == mine;
        let known = host.cached(fabric).is_ok_and(|host| host == self.host);
        if still && known || mutant::is(Mutant::PassesUnseen) {
            return Ok(());
        }
        self.withdraw(layout, fabric, snapshot);
        Err(Refused::Overtaken)
    }

    /// Says beside the mark that is ours who we are, unless that stands there.
    pub(crate) fn record_identity<F: Fabric>(
        &self,
        layout: &Layout,
        fabric: &F,
        snapshot: &SlotSnapshot,
    ) {
        let line = layout.join_mark_host(self.node, snapshot.mark.0);
        if !line.cached(fabric).is_ok_and(|host| host == self.host) {
            // MEM-M1: JOIN-J2.
            line.claim().publish(fabric, &self.host);
        }
    }

    /// Takes the mark back: this process does not come in. And the line beside it, which may have
    /// been another's.
    pub(crate) fn withdraw<F: Fabric>(&self, layout: &Layout, fabric: &F, snapshot: &SlotSnapshot) {
        let (place, before) = snapshot.mark;
        let mark = layout.join_mark(self.node, place).claim();
        let now = Call::from_word(mark.own(fabric));
        if now != Call::of(&self.host, now.incarnation) {
            return;
        }
        if let Some(host) = before.host.filter(|host| *host != self.host) {
            layout.join_mark_host(self.node, place).claim().publish(fabric, &host);
        }
        mark.publish(fabric, before.call.word());
    }

    fn is_mine(&self, mark: &Mark) -> bool {
        mark.call.incarnation != Incarnation(0) && mark.host == Some(self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{HostTier, ProcLiveness};
    use crate::layout::{Arrival, LockProtocol, NodeLine, NodeState};
    use crate::lifecycle::failure_detector::watch_heartbeats;
    use crate::lifecycle::join::JoinError;
    use crate::units::LockId;
    use crate::verify::fixture::{HandClock, SMALL, SmallRegion};
    use crate::verify::small_rack::RigMember;

    const SLOT: NodeId = NodeId(0);

    #[test]
    fn nobody_is_admitted_beside_an_image_of_its_machine_that_sleeps() {
        let comes_in = |wakes: bool| {
            let SmallRegion { rack, layout, .. } =
                SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let first = rack.host(0);
            let image = |boot| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(boot) };
            let sleeper = JoinAttempt::new(SLOT, &image(0), ProcessIdentity::new(2, 1));
            let snapshot = sleeper.look(&layout, &first, Incarnation(0));
            assert_eq!(sleeper.try_claim(&layout, &first, &snapshot, Incarnation(1)), Ok(()));
            let still = HandClock::new(100);
            let heartbeats = watch_heartbeats(&layout, &rack.host(1), &still);
            let seen = heartbeats.iter().map(|it| (it.node, it.in_admission, it.state, it.beats));
            assert_eq!(seen.collect::<Vec<_>>(), [(SLOT, true, None, false)]);
            assert_eq!(heartbeats[0].host, "unknown");
            // While the other one watches its heartbeat it wakes, says that it is in, and beats
            // much later.
            let act = |pause| {
                let now_ms = 100 * pause;
                let host = image(0);
                let joined = NodeState::Joined;
                let line = NodeLine::new(joined, Incarnation(1), host.boot_id, host.machine_id);
                match now_ms {
                    _ if !wakes => {}
                    1000 => layout.node_line(SLOT).claim().publish(&first, &line),
                    2000.. => layout.heartbeat(SLOT).claim().publish(&first, now_ms),
                    _ => {}
                }
            };
            let clock = HandClock::with(100, act);
            let memory = rack.host_memory(1, HostTier::words_of(&SMALL));
            let me = ProcessIdentity::new(3, 1);
            RigMember::join(rack.host(1), memory, SLOT.0, &image(1), me, ProcLiveness, &clock)
                .map(drop)
        };
        let came = comes_in(true);
        assert!(matches!(came, Err(JoinError::NodeInUse { .. })), "{came:?}");
        // It may be the machine before its last boot, or another that sleeps.
        let came = comes_in(false);
        assert!(matches!(came, Err(JoinError::Contended { .. })), "{came:?}");
    }

    #[test]
    fn a_host_that_finds_a_damaged_ticket_leaves_the_join_marks_as_they_were() {
        for leaves in [true, false] {
            let region = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let (layout, looks_on) = (region.layout, region.rack.host(1));
            let clock = HandClock::new(100);
            let join = || {
                let host = region.rack.host(0);
                region.join_over(host, SLOT.0, u32::MAX, ProcLiveness, &clock)
            };
            let first = join().unwrap();
            if leaves {
                first.leave();
            } else {
                drop(first);
            }
            let ticket = layout.request(SLOT, LockId(3)).claim();
            ticket.publish(&region.rack.host(0), u64::MAX);
            let join_marks = || {
                let marks = Marks::fresh(&layout, &looks_on, SLOT);
                (marks, Arrival::from_word(layout.arrival(SLOT).fresh(&looks_on)))
            };
            let (before, _) = join_marks();
            let came = join();
            assert!(matches!(came, Err(JoinError::BadTicket { .. })), "{:?}", came.map(drop));
            let (marks, arrival) = join_marks();
            assert_eq!(marks, before);
            // None beyond the last life.
            let beyond = matches!(arrival, Arrival::Life(life) if life > Incarnation(1));
            assert!(!beyond && arrival != Arrival::Damaged, "{arrival:?}");
        }
    }

    #[test]
    fn who_withdraws_leaves_the_oldest_mark_to_its_host() {
        let SmallRegion { rack, layout, .. } = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
        let host = rack.host(0);
        let attempt = |host| {
            let process = ProcessIdentity::new(2, 1);
            JoinAttempt::new(SLOT, &HostIdentity::simulated(host), process)
        };
        let lives = u32::try_from(JOIN_MARKS).unwrap();
        for life in 1..=lives {
            let comes = attempt(u64::from(life));
            let snapshot = comes.look(&layout, &host, Incarnation(life - 1));
            assert_eq!(comes.try_claim(&layout, &host, &snapshot, Incarnation(life)), Ok(()));
        }
        let marks = Marks::fresh(&layout, &host, SLOT);
        let machine = marks.machine_of(Incarnation(1));
        assert_eq!(machine.map(|machine| machine.boot_id), Some([2, 0]));
        let comes = attempt(99);
        let snapshot = comes.look(&layout, &host, Incarnation(lives));
        assert_eq!(comes.try_claim(&layout, &host, &snapshot, Incarnation(lives + 1)), Ok(()));
        assert_eq!(Marks::fresh(&layout, &host, SLOT).machine_of(Incarnation(1)), None);
        comes.withdraw(&layout, &host, &snapshot);
        assert_eq!(Marks::fresh(&layout, &host, SLOT), marks);
    }

    /// A bit of a mark flips, of each in turn: a host may have joined for another life, and no
    /// machine is named for it.
    #[test]
    fn a_damaged_mark_names_no_machine() {
        for bit in 0..64 {
            let SmallRegion { rack, layout, .. } =
                SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let host = rack.host(0);
            let (identity, process) = (HostIdentity::simulated(0), ProcessIdentity::new(2, 1));
            let comes = JoinAttempt::new(SLOT, &identity, process);
            let snapshot = comes.look(&layout, &host, Incarnation(4));
            assert_eq!(comes.try_claim(&layout, &host, &snapshot, Incarnation(5)), Ok(()));
            let mark = layout.join_mark(SLOT, snapshot.mark.0).claim();
            mark.publish(&host, mark.own(&host) ^ 1 << bit);
            let marks = Marks::fresh(&layout, &host, SLOT);
            let call = Call::from_word(mark.own(&host));
            assert_eq!(marks.machine_of(call.incarnation), None, "bit {bit}");
        }
    }
}
