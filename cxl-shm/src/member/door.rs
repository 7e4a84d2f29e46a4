//! The door of a node slot: of the hosts that come for one slot in the same moment, one passes at
//! most.
//!
//! Nobody owns the lines of a slot that was left, so no line tells who may write them next. Whoever
//! comes announces itself in words that are a line each, looks around, and looks again (Lamport's
//! way into a fast mutex, also known as a splitter):
//!
//! ```text
//! knock := me          publish {token, incarnation}                 one word, of whoever comes
//! look at the marks    another's beyond the slot's incarnation? --> somebody comes, or is in: closed
//! mark := me           publish {host, incarnation}                  a word for each host
//! look at the knock    mine? --> passed
//!                      another's, or the mark is? --> mark := what it was; overtaken
//! ```
//!
//! - **J1** The knock is the one word that several hosts write (an exception to M1). Its line has
//!   nothing else in it, so a host that writes it back brings no old word back; each store takes
//!   effect once, before its publish ends. Only that is relied on: a knock that is overwritten,
//!   also by a host that slept in front of it for a life of the slot, keeps one out, and lets
//!   nobody in. A token is used by one process, so a knock that is mine was not overwritten since.
//! - **J2** A mark has one writing host (M1): that whose name is on it. The name is one of 32 bits, made of
//!   the host and of the incarnation; the line of the mark's host, published before it, says who it is in
//!   full. A mark whose line does not fit, or which is damaged, is of a host that nobody knows: somebody
//!   may be there, and no machine is fenced for it. A host takes the mark of its own name, or, when it never came
//!   before, the one with the smallest incarnation. Who has passed leaves it as it is, so it tells of
//!   the life, also when that is over; who has not takes it back.
//! - **J3** Of two that pass for the same life of the slot one has knocked last. It looked at the marks
//!   after that, and the other one's was there, as that one saw its own knock after it had marked. So
//!   it did not pass.
//! - **J4** Who dies between its mark and the line of the slot leaves the door closed. Another process
//!   of its host passes by: it knows its own mark, and nobody of its host comes beside it, as who comes
//!   holds the lock of the host's tier (over another file system with tiers it is another host here).
//!   Nobody else does, not the machine after a boot either: at the door no heart need beat yet, and images of one
//!   installation have one machine id, so the mark may be that of another which is just coming. For all
//!   others it is the life of that incarnation which has died: its heart stands still, a lock manager
//!   declares it dead and has the host fenced whose mark it is, and its recovery ends with the line of
//!   the slot (R1 to R5). One that was declared dead there, and had only slept, may take its mark
//!   back, or go on, and fences itself: nobody comes for a life that was declared dead.
//!
//! What is left to chance: two hosts that come in the same moment choose the same of sixteen marks. One of
//! them comes for the first time since it booted; the other does, too, or it returns, and its mark is the
//! oldest where all sixteen are used. The first to have marked finds its mark gone, or the second, which
//! slept in front of it, erases it when it is overtaken; then that one, when it tries again, or a third
//! finds the door open until the first has its line.

use crc_fast::CrcAlgorithm;

use super::{HostIdentity, ProcessIdentity};
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::layout::{DOOR_MARKS, DoorHost, Layout, Machine};
use crate::mutant::{self, Mutant};
use crate::units::{Incarnation, NodeId};

/// {who, for which incarnation} in one word: a knock, or a mark. Zero is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Call {
    who: u32,
    incarnation: Incarnation,
}

impl Call {
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart into its fields")]
    fn from_word(word: u64) -> Self {
        Self { who: (word >> 32) as u32, incarnation: Incarnation(word as u32) }
    }

    fn word(self) -> u64 {
        u64::from(self.who) << 32 | u64::from(self.incarnation.0)
    }

    /// The mark of `host` for life `incarnation`: a damaged one does not fit.
    fn of(host: &DoorHost, incarnation: Incarnation) -> Self {
        let life = [u64::from(incarnation.0)];
        Self { who: name_of(&[&host.words()[..], &life].concat()), incarnation }
    }
}

/// A mark, and whose it is in full: `None` when that cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mark {
    call: Call,
    host: Option<DoorHost>,
}

/// The marks at a door, read at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    /// The marks at the door of `node`, freshly read.
    fn fresh<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Self {
        fabric.refresh(layout.door(node));
        Self::cached(layout, fabric, node)
    }

    /// What the caches hold of the marks at the door of `node`.
    pub(crate) fn cached<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Self {
        let mark = |index| {
            let call = Call::from_word(layout.door_mark(node, index).cached(fabric));
            let host = layout.door_host(node, index).cached(fabric).ok();
            Mark { call, host: host.filter(|host| Call::of(host, call.incarnation) == call) }
        };
        Self((0..DOOR_MARKS).map(mark).collect())
    }

    /// The largest incarnation beyond `last`, and not beyond `up_to`, that any host has come for.
    pub(crate) fn beyond(&self, last: Incarnation, up_to: Incarnation) -> Option<Incarnation> {
        let incarnations = self.0.iter().map(|mark| mark.call.incarnation);
        incarnations.filter(|incarnation| *incarnation > last && *incarnation <= up_to).max()
    }

    /// The machine that came for life `incarnation`, when the marks still say so, and of one only.
    pub(crate) fn machine_of(&self, incarnation: Incarnation) -> Option<Machine> {
        let mut marks = self.0.iter().filter(|mark| mark.call.incarnation == incarnation);
        let first = marks.next()?;
        marks.next().is_none().then_some(first.host?.machine())
    }
}

/// Why a host did not pass. Nothing is left of its coming but a knock, which means nothing, and, beside a
/// mark that was nobody's, a line of who it is.
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
        // J2.
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
        // M1: J1.
        layout.knock(self.node).claim().publish(fabric, knock);
        let again = self.look(layout, fabric, outside.said);
        if again != *outside {
            return Err(Refused::Closed);
        }
        self.sign(layout, fabric, outside);
        // M1: J2.
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
            // M1: J2.
            line.claim().publish(fabric, &self.host);
        }
    }

    /// Takes the mark back: this process does not come in. And the line beside it, which may have been
    /// another's.
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

/// A number of 32 bits for what is told apart by more.
fn name_of(words: &[u64]) -> u32 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes);
    u32::try_from(crc & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::Clock;
    use crate::fabric::simulated::SimulatedRack;
    use crate::layout::{
        Arrival, Geometry, LockProtocol, NodeLine, NodeState, Superblock, format_superblock,
    };
    use crate::member::{HostTier, JoinError, Member, ProcLiveness, watch_hearts};
    use crate::units::LockId;

    const SLOT: NodeId = NodeId(0);
    const GEOMETRY: Geometry = Geometry {
        region_bytes: 8 << 20,
        nodes: 2,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };

    /// A clock in whose pauses something happens.
    struct Acting<A> {
        now_ms: Cell<u64>,
        act: A,
    }

    impl<A: Fn(u64)> Clock for Acting<A> {
        fn now_ms(&self) -> u64 {
            self.now_ms.get()
        }

        fn pause(&self, _: u32) {
            self.now_ms.set(self.now_ms.get() + 100);
            (self.act)(self.now_ms.get());
        }
    }

    #[test]
    fn nobody_comes_in_beside_an_image_of_its_machine_that_sleeps_at_the_door() {
        let comes_in = |wakes: bool| {
            let rack = SimulatedRack::sticky(2, GEOMETRY.region_bytes);
            let superblock = Superblock::new([1, 2], GEOMETRY, [0; 6]);
            format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
            let (layout, first) = (Layout::new(GEOMETRY).unwrap(), rack.host(0));
            let image = |boot| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(boot) };
            let sleeper = Visitor::new(SLOT, &image(0), ProcessIdentity::new(2, 1));
            let outside = sleeper.look(&layout, &first, Incarnation(0));
            assert_eq!(sleeper.pass(&layout, &first, &outside, Incarnation(1)), Ok(()));
            let still = Acting { now_ms: Cell::new(0), act: |_| () };
            let hearts = watch_hearts(&layout, &rack.host(1), &still);
            let seen = hearts.iter().map(|it| (it.node, it.at_door, it.state, it.beats));
            assert_eq!(seen.collect::<Vec<_>>(), [(SLOT, true, None, false)]);
            assert_eq!(hearts[0].host, "unknown");
            // While the other one watches its heart it wakes, says that it is in, and beats much later.
            let act = |now_ms| {
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
            let clock = Acting { now_ms: Cell::new(0), act };
            let memory = rack.host_memory(1, HostTier::words_of(&GEOMETRY));
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
            let rack = SimulatedRack::sticky(2, GEOMETRY.region_bytes);
            let lock_protocol = LockProtocol::Arbitrated;
            let superblock =
                Superblock { lock_protocol, ..Superblock::new([1, 2], GEOMETRY, [0; 6]) };
            format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
            let (layout, looks_on) = (Layout::new(GEOMETRY).unwrap(), rack.host(1));
            let clock = Acting { now_ms: Cell::new(0), act: |_| () };
            let join = || {
                let memory = rack.host_memory(0, HostTier::words_of(&GEOMETRY));
                let (host, me) = (HostIdentity::simulated(0), ProcessIdentity::new(u32::MAX, 1));
                Member::join(rack.host(0), memory, SLOT.0, &host, me, ProcLiveness, &clock)
            };
            let first = join().unwrap();
            if leaves {
                first.leave();
            } else {
                drop(first);
            }
            let ticket = layout.request(SLOT, LockId(3)).claim();
            ticket.publish(&rack.host(0), u64::MAX);
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
        let rack = SimulatedRack::sticky(1, GEOMETRY.region_bytes);
        let (layout, host) = (Layout::new(GEOMETRY).unwrap(), rack.host(0));
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

    /// A bit of a mark flips, of each in turn: somebody may have come for another life, and no machine is
    /// named for it.
    #[test]
    fn a_damaged_mark_names_no_machine() {
        for bit in 0..64 {
            let rack = SimulatedRack::sticky(1, GEOMETRY.region_bytes);
            let (layout, host) = (Layout::new(GEOMETRY).unwrap(), rack.host(0));
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
