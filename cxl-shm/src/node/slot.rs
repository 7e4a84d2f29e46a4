//! The inhabitant of each node slot, as far as its lines say.

use super::marks::Marks;
use crate::fabric::{Fabric, LineError, OwnedArea, refresh_all};
use crate::layout::{Arrival, Layout, Machine, NodeLine, NodeState, RecoveryRecord, RecoveryStep};
use crate::layout::{OwnedDoubleBuffer, PeerDoubleBuffer, Unreadable};
use crate::mutant::{self, Mutant};
use crate::units::{Incarnation, LineRange, NodeId};

/// A node slot that was ever joined, as read at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) node: NodeId,
    /// Its present life, or its last one.
    pub(crate) incarnation: Incarnation,
    /// The last life that its line names. There may be one after it, which its line says nothing of
    /// yet.
    pub(crate) said: Incarnation,
    /// What its line says of that life; `None` when the line cannot be read (torn by a death, or
    /// damaged), or says nothing of it yet: then it may speak of another host.
    pub(crate) line: Option<NodeLine>,
    /// The machine of that life, by the line or by the join mark; `None` when neither says
    /// so, or when nobody lives there.
    pub(crate) machine: Option<Machine>,
    /// It holds nothing, and nobody lives in it.
    pub(crate) vacant: bool,
    /// A host came for it, and is not admitted yet, or has died before that (JOIN-J4, DEATH-R3).
    pub(crate) in_admission: bool,
}

impl Slot {
    /// What the caches hold of the slot of `node`; `None` when it was never joined.
    pub(crate) fn cached<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Option<Self> {
        let arrival = Arrival::from_word(layout.arrival(node).cached(fabric));
        let Said { last: said, line, blank } = Said::cached(layout, fabric, node);
        let arrived = match arrival {
            Arrival::Nobody if blank => return None,
            Arrival::Nobody => None,
            Arrival::Life(life) => Some(life),
            // Somebody may have come, for the next life. Nobody knows who: then an operator has to
            // say that the host is off, and its recoverer repairs the word.
            Arrival::Damaged => said.0.checked_add(1).map(Incarnation),
        };
        if let Some(arrived) = arrived.filter(|arrived| *arrived > said) {
            return Some(Self::in_admission(node, arrived, said));
        }
        let vacant = line.and_then(|line| line.state()).is_some_and(NodeState::is_vacant);
        let machine = line.filter(|_| !vacant).map(|line| line.machine());
        Some(Self { node, incarnation: said, said, line, machine, vacant, in_admission: false })
    }

    /// Life `incarnation` of `node`, which has not come further than its admission.
    fn in_admission(node: NodeId, incarnation: Incarnation, said: Incarnation) -> Self {
        let (line, machine) = (None, None);
        Self { node, incarnation, said, line, machine, vacant: false, in_admission: true }
    }

    /// What the lines of the slot of `node` say, freshly read, whichever host is being admitted.
    pub(crate) fn inside<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Option<Self> {
        refresh_all(fabric, lines_of(layout, node));
        Self::cached(layout, fabric, node)
    }

    /// The slot of `node`, freshly read, with the life in admission.
    pub(crate) fn fresh<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Option<Self> {
        Self::with_admissions(layout, fabric, &[node], None).pop()
    }

    /// The slot of `node`, freshly read, with a life in admission up to `last`, also where somebody
    /// lives: one that came after a case of `last` was opened finds that, and withdraws
    /// (DEATH-C2).
    pub(crate) fn up_to<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        node: NodeId,
        last: Incarnation,
    ) -> Option<Self> {
        Self::with_admissions(layout, fabric, &[node], Some(last)).pop()
    }

    /// All slots, freshly read with two fences, with the lives in admission.
    pub(crate) fn all<F: Fabric>(layout: &Layout, fabric: &F) -> Vec<Self> {
        Self::with_admissions(layout, fabric, &layout.nodes().collect::<Vec<_>>(), None)
    }

    /// The slots of `nodes`, freshly read, and of those whose line does not name an inhabitant, the
    /// join marks, whatever the claim word says: a host that slept may have overwritten the claim
    /// of one that has died there since. With `up_to` also those of others, for lives up to that
    /// one.
    fn with_admissions<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        nodes: &[NodeId],
        up_to: Option<Incarnation>,
    ) -> Vec<Self> {
        let slots = Self::without_admissions(layout, fabric, nodes);
        let asks = |slot: &Option<Self>| {
            slot.is_none_or(|it| it.machine.is_none() || up_to.is_some_and(|last| it.said < last))
        };
        let asked = slots.iter().filter(|(_, slot)| asks(slot));
        refresh_all(fabric, asked.map(|(node, _)| layout.join_marks(*node)));
        let with_admission = |(node, slot): (NodeId, Option<Self>)| {
            if asks(&slot) { Self::with_admission(layout, fabric, node, slot, up_to) } else { slot }
        };
        slots.into_iter().filter_map(with_admission).collect()
    }

    /// What the lines of the slots of `nodes` say, freshly read with one fence, whichever host is
    /// being admitted.
    pub(super) fn without_admissions<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        nodes: &[NodeId],
    ) -> Vec<(NodeId, Option<Self>)> {
        refresh_all(fabric, nodes.iter().flat_map(|node| lines_of(layout, *node)));
        nodes.iter().map(|node| (*node, Self::cached(layout, fabric, *node))).collect()
    }

    /// `slot`, of which its lines say so much, with the life in admission as the caches hold it.
    pub(super) fn with_admission<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        node: NodeId,
        slot: Option<Self>,
        up_to: Option<Incarnation>,
    ) -> Option<Self> {
        let marks = Marks::cached(layout, fabric, node);
        let said = slot.map_or(Incarnation(0), |slot| slot.said);
        let arrived = slot.filter(|slot| slot.in_admission).map(|slot| slot.incarnation);
        let beyond = marks.beyond(said, up_to.unwrap_or(Incarnation(u32::MAX)));
        let here = match beyond.max(arrived) {
            Some(incarnation) => Self::in_admission(node, incarnation, said),
            None => slot?,
        };
        let by_mark = || marks.machine_of(here.incarnation).filter(|_| !here.vacant);
        Some(Self { machine: here.machine.or_else(by_mark), ..here })
    }
}

/// What the line of a slot says, also when it is torn: state and incarnation are one word, which
/// never tears.
struct Said {
    /// The incarnation that it names.
    last: Incarnation,
    line: Option<NodeLine>,
    /// Nobody ever wrote it.
    blank: bool,
}

impl Said {
    /// What the caches hold of the line of `node`.
    fn cached<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Self {
        let at = layout.node_line(node);
        let line = at.cached(fabric);
        let blank = matches!(line, Err(LineError::Blank { .. }));
        // Our cache may have fetched a newer line since: then what the older one says is past.
        let first_word = at.at().word(0).map_or(0, |word| fabric.load(word));
        let line = line.ok().filter(|line| line.first_word() == first_word);
        let last = Incarnation(u32::try_from(first_word >> 32).unwrap_or(u32::MAX));
        Self { last, line, blank }
    }
}

fn lines_of(layout: &Layout, node: NodeId) -> [LineRange; 2] {
    [layout.node_line(node).range(), layout.arrival(node).range()]
}

/// How far every node says it is with the recovery of `victim`, freshly read. What cannot be read
/// at the moment is left out: it is being written, for the second time since the look began. So
/// this is for a caller that wants proof that something is over, never for one that must know that
/// no process works on it ([`recoverers_at_work`]).
pub(crate) fn recoveries_of<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
) -> Vec<(NodeId, RecoveryRecord)> {
    let records = said_of(layout, fabric, victim).into_iter();
    records.filter_map(|(node, record)| Some((node, record.ok()??))).collect()
}

/// What every node says of the recovery of `victim`, freshly read.
fn said_of<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
) -> Vec<(NodeId, Result<Option<RecoveryRecord>, Unreadable>)> {
    let double_buffer =
        |node| PeerDoubleBuffer::<RecoveryRecord>::of(layout.recoveries(node), victim);
    refresh_all(fabric, layout.nodes().flat_map(|node| double_buffer(node).ranges()));
    layout.nodes().map(|node| (node, double_buffer(node).cached(fabric))).collect()
}

/// The nodes that may be writing the lines of `victim` as its recoverers, freshly read: they say
/// that they are at it, and live; or what they say cannot be read, and they live. The caller has
/// refreshed the line of the slot: one that is older than it should be errs on the side of waiting.
///
/// What a recoverer says of a life that the line says is past counts for nothing. Its process may
/// have died after another had ended the recovery, or it itself had, and before it said so; nobody
/// is appointed to that life any more, so nobody corrects the record. And it writes nothing: the
/// line says that a life is past, or names a later one, after the last write of its recovery
/// (DEATH-R1, DEATH-R3).
///
/// A record that cannot be read counts as a recovery under way: it was written twice while we
/// looked, and each of the two writes may have been any step. One that stays so, because its line
/// is damaged, counts until the present life of its node is over, as its line or its recovery says.
/// The next life makes the record good before its line says that it lives ([`make_good`]).
pub(crate) fn recoverers_at_work<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
) -> Vec<NodeId> {
    let records = said_of(layout, fabric, victim).into_iter();
    let at_work = records.filter(|(node, record)| match record {
        Ok(None) => false,
        Ok(Some(record)) => {
            record.step().is_some_and(RecoveryStep::is_under_way)
                && !is_past(layout, fabric, victim, record.case().incarnation)
                && !is_over(layout, fabric, *node, record.recoverer_incarnation())
        }
        // Nobody recovers itself.
        Err(Unreadable) => *node != victim && is_lived_in(layout, fabric, *node),
    });
    at_work.map(|(node, _)| node).collect()
}

/// Whether what `node` says of the recovery of `victim` cannot be read, freshly: it is being
/// written, or it is damaged until the next life of `node` makes it good.
pub(crate) fn is_unreadable<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    victim: NodeId,
) -> bool {
    said_of(layout, fabric, victim).iter().any(|(by, record)| *by == node && record.is_err())
}

/// Whether the life of `node` that its line names is not over for certain, freshly read.
fn is_lived_in<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> bool {
    let slot = Slot::inside(layout, fabric, node);
    slot.is_some_and(|slot| !is_over(layout, fabric, node, slot.said))
}

/// The life that the line of `node` names last, by what the caches hold; also of a line that is
/// torn.
pub(crate) fn last_named<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Incarnation {
    Said::cached(layout, fabric, node).last
}

/// Replaces what a former life of `me` said as a recoverer and what cannot be read any more. Only
/// while the host joins, which has refreshed its records, and before its line says that it lives.
pub(crate) fn make_good<F: Fabric>(layout: &Layout, fabric: &F, me: NodeId, records: OwnedArea) {
    for victim in layout.nodes() {
        let double_buffer = OwnedDoubleBuffer::<RecoveryRecord>::of(records, victim);
        if double_buffer.own(fabric).is_err() {
            double_buffer.publish(fabric, RecoveryRecord::nothing());
            tracing::warn!(node = %me, %victim, "repaired a damaged recovery record");
        }
    }
}

/// Whether the line of `node` says that its life `incarnation` is past, from what the caches hold.
/// Not its arrival: a joining host takes that back when it is refused.
fn is_past<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, incarnation: Incarnation) -> bool {
    let Said { last, line, .. } = Said::cached(layout, fabric, node);
    let vacant = line.and_then(|line| line.state()).is_some_and(NodeState::is_vacant);
    last > incarnation || last == incarnation && vacant
}

/// Whether life `incarnation` of `node` is over for certain: it will never write again.
pub(crate) fn is_over<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    incarnation: Incarnation,
) -> bool {
    refresh_all(fabric, lines_of(layout, node));
    // For a joining host only a whole arrival counts: a join mark, or a damaged arrival,
    // proves nothing.
    let arrival = Arrival::from_word(layout.arrival(node).cached(fabric));
    let arrived = matches!(arrival, Arrival::Life(life) if life > incarnation);
    is_past(layout, fabric, node, incarnation)
        || arrived
        || recoveries_of(layout, fabric, node).iter().any(|(_, record)| {
            record.case().incarnation >= incarnation
                && record.step().is_some_and(RecoveryStep::is_fenced)
        })
}

/// Whether a host takes part as `node`, or did and has not left, as a lock manager asks (LOCK-T4):
/// from what the caches hold of the node's line and its summary.
///
/// Not of its arrival. A life in admission (JOIN-J4) has asked for no lock and acknowledged no
/// term, and it publishes its line before it looks for a manager to obey: when a manager has
/// claimed its term, and then reads a line that does not name that life, that life sees the claim,
/// and acknowledges it. What the life before it held stays with the slot, whose line names that one
/// still: it is waited for as if nobody had come, until a recoverer has freed it ([`is_freed`]), or
/// a new line names who acknowledges in its place. Were it asked of the arrival, one that died
/// between its arrival and its line would keep two managers waiting for each other: the one at the
/// recovery of the life before for the lock of the chunks, and the other, which must not recover
/// beside it (DEATH-R4), for an acknowledgement.
pub(crate) fn is_taken<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> bool {
    let Said { line, blank, .. } = Said::cached(layout, fabric, node);
    if blank {
        // Never joined, unless it has asked for something all the same.
        let told = [layout.summary(node), layout.request_copy(node)];
        return told.iter().any(|word| word.cached(fabric) != 0);
    }
    !line.and_then(|line| line.state()).is_some_and(NodeState::is_vacant)
}

/// Whether the life of `node` that its line names is dead, fenced, and all that it held of the
/// locks was freed: nobody needs to wait for it any more (LOCK-T4). Nor for one in admission behind
/// it ([`is_taken`]). The line from the caches, the recoveries freshly.
pub(crate) fn is_freed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> bool {
    let Said { last: said, .. } = Said::cached(layout, fabric, node);
    let first = match mutant::is(Mutant::TakesFencedForFreed) {
        true => RecoveryStep::Fenced,
        false => RecoveryStep::Freed,
    };
    let freed = first..=RecoveryStep::Done;
    recoveries_of(layout, fabric, node).iter().any(|(_, record)| {
        record.case().incarnation >= said && record.step().is_some_and(|step| freed.contains(&step))
    })
}
