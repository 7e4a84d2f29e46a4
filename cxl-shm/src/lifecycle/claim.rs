//! Admission to a node slot: when several hosts want one slot at the same moment, at most one gets
//! it.
//!
//! No host owns the lines of a slot that was left, so no line says who may write them next. Each
//! joining host announces itself in words that are a line each, looks, and looks again (Lamport's
//! fast mutual exclusion, also known as a splitter). The code calls the place of these words the
//! *door*, the claim word the *knock*, and a join mark a *mark*:
//!
//! ```text
//! knock := me          publish {token, incarnation}          one word that any joining host writes
//! look at the marks    one beyond the slot's incarnation is another host's? --> closed
//! mark := me           publish {host, incarnation}           one word for each host
//! look at the knock    still mine? --> admitted
//!                      not mine, or the mark is not mine? --> mark := its former value; overtaken
//! ```
//!
//! - **JOIN-J1** The knock is the one word that several hosts write (an exception to MEM-M1). Its
//!   line holds nothing else, so a host that writes the line back restores no old value of another
//!   word. Each store takes effect once, before its publish ends. Nothing more is relied on. A host
//!   that slept before it stored its knock, perhaps for a whole life of the slot, may overwrite the
//!   knock of another host. That keeps the other host out, and admits nobody. One process uses one
//!   token, so a knock that is still mine was not overwritten since.
//! - **JOIN-J2** A mark has one writing host (MEM-M1): the host whose name it holds. The name has
//!   32 bits, made of the host and the incarnation. The line beside the mark is published before it
//!   and identifies the host in full. A mark that is damaged, or does not match its line, belongs
//!   to an unknown host: a host may be there, and no machine is fenced for it. A host uses the mark
//!   with its own name. A host that never joined before uses the mark with the smallest
//!   incarnation. An admitted host leaves its mark in place, so the mark still tells of its life
//!   when that is over. A host that was not admitted restores the former value.
//! - **JOIN-J3** Of two hosts that pass for the same life of the slot, one knocked last. That host
//!   looked at the marks afterwards. The other host's mark was there already, because the other
//!   host saw its own knock after it had published its mark. So the last to knock was not admitted.
//! - **JOIN-J4** A host that dies between its mark and the line of the slot leaves the door closed.
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
//! it finds the door open until the first host has published its line.

use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::{DOOR_MARKS, DoorHost, Layout};
use crate::mutant::{self, Mutant};
use crate::node::{Call, Mark, Marks, name_of};
use crate::units::{Incarnation, NodeId};

/// Why a host did not pass. Nothing is left of its coming but a knock, which means nothing, and,
/// beside a mark that belonged to no host, a line that identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Refused {
    /// Another comes, or is in.
    Closed,
    /// Another came in the same moment.
    Overtaken,
}

/// A process that comes for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Visitor {
    node: NodeId,
    /// No other process has it.
    token: u32,
    /// Its host: the same when another process of it comes, over the same tiers.
    host: DoorHost,
}

/// What a visitor saw of the door before it knocked.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Outside {
    /// The last life of the slot, as its line says.
    said: Incarnation,
    /// The place of the mark that is ours, and what it is.
    mark: (u64, Mark),
    /// The incarnation for which this very host has come last.
    own: Incarnation,
    /// Another host comes, or is in.
    closed: bool,
}

impl Outside {
    /// The last life of the slot, and whether it is one of this very host that died at the door.
    pub(crate) fn last(&self) -> (Incarnation, bool) {
        (self.own.max(self.said), self.own > self.said)
    }

    /// Whether there is no need to knock: another host comes, or is in.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

impl Visitor {
    /// `process` of `host`, which comes for the slot of `node`.
    pub(crate) fn new(node: NodeId, host: &HostIdentity, process: ProcessIdentity) -> Self {
        let namespace = host.pid_namespace;
        let host = DoorHost::new(host.boot_id, host.machine_id, host.tier_device);
        let token = name_of(&[&host.words()[..], &[namespace, process.word()]].concat());
        Self { node, token, host }
    }

    /// Looks at the door of the slot, whose line says that `said` is its last life.
    pub(crate) fn look<F: Fabric>(
        &self,
        layout: &Layout,
        fabric: &F,
        said: Incarnation,
    ) -> Outside {
        let Marks(marks) = Marks::fresh(layout, fabric, self.node);
        let first = u64::from(name_of(&self.host.words())) % DOOR_MARKS;
        let distance = |place: u64| (place + DOOR_MARKS - first) % DOOR_MARKS;
        // JOIN-J2.
        let own = (0..).zip(&marks).min_by_key(|(place, mark)| {
            (!self.is_mine(mark), mark.call.incarnation, distance(*place))
        });
        let (place, mark) = own.expect("a door has marks");
        let (ours, others): (Vec<&Mark>, Vec<&Mark>) =
            marks.iter().partition(|mark| self.is_mine(mark));
        let own = ours.iter().map(|mark| mark.call.incarnation).max();
        let closed = others.iter().any(|mark| mark.call.incarnation > said);
        Outside { said, mark: (place, *mark), own: own.unwrap_or(Incarnation(0)), closed }
    }

    /// Tries to pass the door for life `next` of the slot, after a look at it.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn pass<F: Fabric>(
        &self,
        layout: &Layout,
        fabric: &F,
        outside: &Outside,
        next: Incarnation,
    ) -> Result<(), Refused> {
        let (place, _) = outside.mark;
        let knock = Call { who: self.token, incarnation: next }.word();
        // MEM-M1: JOIN-J1.
        layout.knock(self.node).claim().publish(fabric, knock);
        let again = self.look(layout, fabric, outside.said);
        if again != *outside {
            return Err(Refused::Closed);
        }
        self.sign(layout, fabric, outside);
        // MEM-M1: JOIN-J2.
        let mark = layout.door_mark(self.node, place).claim();
        let mine = Call::of(&self.host, next);
        mark.publish(fabric, mine.word());
        crash::reach(CrashPoint::JoinMarked);
        let host = layout.door_host(self.node, place);
        let knocked = layout.knock(self.node);
        refresh_all(fabric, [knocked.range(), mark.peer().range(), host.range()]);
        let marked = Call::from_word(mark.own(fabric));
        let still = knocked.cached(fabric) == knock && marked == mine;
        let known = host.cached(fabric).is_ok_and(|host| host == self.host);
        if still && known || mutant::is(Mutant::PassesUnseen) {
            return Ok(());
        }
        self.step_back(layout, fabric, outside);
        Err(Refused::Overtaken)
    }

    /// Says beside the mark that is ours who we are, unless that stands there.
    pub(crate) fn sign<F: Fabric>(&self, layout: &Layout, fabric: &F, outside: &Outside) {
        let line = layout.door_host(self.node, outside.mark.0);
        if !line.cached(fabric).is_ok_and(|host| host == self.host) {
            // MEM-M1: JOIN-J2.
            line.claim().publish(fabric, &self.host);
        }
    }

    /// Takes the mark back: this process does not come in. And the line beside it, which may have
    /// been another's.
    pub(crate) fn step_back<F: Fabric>(&self, layout: &Layout, fabric: &F, outside: &Outside) {
        let (place, before) = outside.mark;
        let mark = layout.door_mark(self.node, place).claim();
        let now = Call::from_word(mark.own(fabric));
        if now != Call::of(&self.host, now.incarnation) {
            return;
        }
        if let Some(host) = before.host.filter(|host| *host != self.host) {
            layout.door_host(self.node, place).claim().publish(fabric, &host);
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
    use crate::node::Member;
    use crate::units::LockId;
    use crate::verify::fixture::{HandClock, SMALL, SmallRegion};

    const SLOT: NodeId = NodeId(0);

    #[test]
    fn nobody_comes_in_beside_an_image_of_its_machine_that_sleeps_at_the_door() {
        let comes_in = |wakes: bool| {
            let SmallRegion { rack, layout, .. } =
                SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let first = rack.host(0);
            let image = |boot| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(boot) };
            let sleeper = Visitor::new(SLOT, &image(0), ProcessIdentity::new(2, 1));
            let outside = sleeper.look(&layout, &first, Incarnation(0));
            assert_eq!(sleeper.pass(&layout, &first, &outside, Incarnation(1)), Ok(()));
            let still = HandClock::new(100);
            let heartbeats = watch_heartbeats(&layout, &rack.host(1), &still);
            let seen = heartbeats.iter().map(|it| (it.node, it.at_door, it.state, it.beats));
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
            Member::join(rack.host(1), memory, SLOT.0, &image(1), me, ProcLiveness, &clock)
                .map(drop)
        };
        let came = comes_in(true);
        assert!(matches!(came, Err(JoinError::NodeInUse { .. })), "{came:?}");
        // It may be the machine before its last boot, or another that sleeps.
        let came = comes_in(false);
        assert!(matches!(came, Err(JoinError::Contended { .. })), "{came:?}");
    }

    #[test]
    fn who_finds_a_damaged_ticket_inside_leaves_the_door_as_it_was() {
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
            let door = || {
                let marks = Marks::fresh(&layout, &looks_on, SLOT);
                (marks, Arrival::from_word(layout.arrival(SLOT).fresh(&looks_on)))
            };
            let (before, _) = door();
            let came = join();
            assert!(matches!(came, Err(JoinError::BadTicket { .. })), "{:?}", came.map(drop));
            let (marks, arrival) = door();
            assert_eq!(marks, before);
            // None beyond the last life.
            let beyond = matches!(arrival, Arrival::Life(life) if life > Incarnation(1));
            assert!(!beyond && arrival != Arrival::Damaged, "{arrival:?}");
        }
    }

    #[test]
    fn who_steps_back_leaves_the_oldest_mark_to_its_host() {
        let SmallRegion { rack, layout, .. } = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
        let host = rack.host(0);
        let visitor = |host| {
            let process = ProcessIdentity::new(2, 1);
            Visitor::new(SLOT, &HostIdentity::simulated(host), process)
        };
        let lives = u32::try_from(DOOR_MARKS).unwrap();
        for life in 1..=lives {
            let comes = visitor(u64::from(life));
            let outside = comes.look(&layout, &host, Incarnation(life - 1));
            assert_eq!(comes.pass(&layout, &host, &outside, Incarnation(life)), Ok(()));
        }
        let marks = Marks::fresh(&layout, &host, SLOT);
        let machine = marks.machine_of(Incarnation(1));
        assert_eq!(machine.map(|machine| machine.boot_id), Some([2, 0]));
        let comes = visitor(99);
        let outside = comes.look(&layout, &host, Incarnation(lives));
        assert_eq!(comes.pass(&layout, &host, &outside, Incarnation(lives + 1)), Ok(()));
        assert_eq!(Marks::fresh(&layout, &host, SLOT).machine_of(Incarnation(1)), None);
        comes.step_back(&layout, &host, &outside);
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
            let comes = Visitor::new(SLOT, &identity, process);
            let outside = comes.look(&layout, &host, Incarnation(4));
            assert_eq!(comes.pass(&layout, &host, &outside, Incarnation(5)), Ok(()));
            let mark = layout.door_mark(SLOT, outside.mark.0).claim();
            mark.publish(&host, mark.own(&host) ^ 1 << bit);
            let marks = Marks::fresh(&layout, &host, SLOT);
            let call = Call::from_word(mark.own(&host));
            assert_eq!(marks.machine_of(call.incarnation), None, "bit {bit}");
        }
    }
}
