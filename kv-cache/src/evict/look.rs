//! The owner's fresh look at what all hosts say of some of its blocks; or its reclaimer's.

use cxl_shm::fabric::{LineError, refresh_all};
use cxl_shm::layout::NodeState;
use cxl_shm::lifecycle::is_declared_dead;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{Incarnation, NodeId};

use super::HoldWatch;
use crate::format::{Areas, ReaderWord, age};
use crate::heap::LockedHeap;

/// What the hosts say of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Some host holds it.
    pub(crate) held: bool,
    /// When it was used last, anywhere: a position in its owner's log; `None` when never.
    pub(crate) used: Option<u64>,
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Reads the reader words of this node's `slots` freshly. The results are in the same order.
    pub(crate) fn look_at_reader_words(
        &self,
        watch: &mut HoldWatch,
        slots: &[u32],
        now_ms: u64,
    ) -> Vec<Seen> {
        look_at_reader_words(self.member, &self.areas, self.node(), watch, slots, now_ms)
    }
}

/// Reads the reader words of `owner`'s `slots` freshly. The results are in the same order. The
/// caller may write `owner`'s segment.
///
/// Reader words of nodes that have left or are dead do not count (EVICT-H5). A node whose line says
/// so now and that joins later writes its word after this look: it will find EVICTING, when that is
/// what this look follows (EVICT-H1).
pub(crate) fn look_at_reader_words<B: Backend>(
    member: &Member<B>,
    areas: &Areas,
    owner: NodeId,
    watch: &mut HoldWatch,
    slots: &[u32],
    now_ms: u64,
) -> Vec<Seen> {
    let (me, fabric, layout) = (member.node(), member.fabric(), areas.layout());
    let others = || layout.nodes().filter(|node| *node != me);
    refresh_all(fabric, others().map(|node| layout.node_line(node).range()));
    let readers: Vec<(NodeId, Option<Incarnation>)> = others()
        .filter_map(|node| match layout.node_line(node).cached(fabric) {
            Ok(line) if line.state().is_some_and(NodeState::is_vacant) => None,
            Ok(line) => Some((node, Some(line.incarnation()))),
            // Never joined.
            Err(LineError::Blank { .. }) => None,
            // Somebody who cannot be read may hold something.
            Err(_) => Some((node, None)),
        })
        .collect();
    let reader_words = |node| areas.reader_words(node);
    let words = readers.iter().flat_map(|(node, _)| {
        slots.iter().map(move |slot| reader_words(*node).word(owner, *slot).range())
    });
    refresh_all(fabric, words);
    // Asked for only when a reader word says that a reader holds something.
    let mut declared: Vec<(NodeId, bool)> = Vec::new();
    let mut is_dead = |node: NodeId, incarnation: Option<Incarnation>| {
        let known = declared.iter().find(|(other, _)| *other == node).map(|(_, dead)| *dead);
        known.unwrap_or_else(|| {
            let dead = incarnation.is_some_and(|life| is_declared_dead(layout, fabric, node, life));
            declared.push((node, dead));
            dead
        })
    };
    let own_reader_words = areas.own_reader_words(member.area());
    // The caller is the only one that may append: the head is that of this look, and of no other.
    let head = areas.log_head(owner).cached(fabric);
    let used_at = |tick| age(tick, head).and_then(|age| head.checked_sub(u64::from(age)));
    let mut look = |slot: &u32| {
        let own = own_reader_words.own(fabric, owner, *slot);
        let held = watch.protects(me, *slot, own, now_ms);
        let mut seen = Seen { held, used: used_at(own.tick) };
        for (node, incarnation) in &readers {
            let reader_word =
                ReaderWord::from_word(reader_words(*node).word(owner, *slot).cached(fabric));
            seen.used = seen.used.max(used_at(reader_word.tick));
            let held = watch.protects(*node, *slot, reader_word, now_ms);
            seen.held |= held && !is_dead(*node, *incarnation);
        }
        seen
    };
    slots.iter().map(&mut look).collect()
}

/// When blocks in `slots` of this node were used last on any host, as positions in its log, for a
/// process that does not hold the heap lock: a use that is newer than the head it reads is not seen.
pub(crate) fn last_uses<B: Backend>(
    member: &Member<B>,
    areas: &Areas,
    slots: &[u32],
) -> Vec<Option<u64>> {
    let seen =
        look_at_reader_words(member, areas, member.node(), &mut HoldWatch::default(), slots, 0);
    seen.into_iter().map(|seen| seen.used).collect()
}
