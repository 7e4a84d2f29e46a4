//! What nodes have asked of all others and is in force, as `rackline status` lists it: pins, clears
//! and drains.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;
use kv_cache::{Directive, Drain, IssuedDirective, directives_of};
use serde::Serialize;

use crate::output::say;

/// A pin, a clear or a drain in force.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DirectiveStatus {
    /// `clear`, `pin`, `unpin`, `drain` or `undrain`; `damaged` when the line cannot be read.
    pub(crate) directive: &'static str,
    /// The node that asked.
    pub(crate) asked_by: u16,
    /// The namespace, as `rackline pin` prints it; none when all are cleared, and of drains.
    pub(crate) namespace: Option<String>,
    /// The node that is drained, or not any more.
    pub(crate) drained: Option<u16>,
    /// How much of a node's part of the pool a pin covers.
    percent: Option<u16>,
    /// When a pin ends, by the clock of the host that asked.
    left_s: Option<u64>,
    /// Nodes that take part and have not answered.
    pub(crate) unanswered: Vec<u16>,
    /// Nodes that do not set a pin.
    pub(crate) refused: Vec<u16>,
}

/// The directives of all nodes that are in force, for the nodes that `take_part`, and of these for `idle`
/// ones, which have no block.
pub(crate) fn in_force(
    fabric: &impl Fabric,
    superblock: &Superblock,
    layout: &Layout,
    take_part: &[NodeId],
    idle: &[NodeId],
) -> Result<Vec<DirectiveStatus>> {
    let mut issued = Vec::new();
    for node in layout.nodes() {
        let directives = directives_of(fabric, superblock, layout, node)?;
        issued.extend(directives.into_iter().map(|directive| (node, directive)));
    }
    Ok(select(&issued, take_part, idle, unix_ms()))
}

#[expect(clippy::disallowed_methods, reason = "for what is shown alone")]
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Clears and unpins are in force until all nodes have answered, pins until their time is over, and
/// drains until somebody ends them. Of the pins and unpins of a namespace only the last counts, and of
/// the drains of a node and their ends.
fn select(
    issued: &[(NodeId, IssuedDirective)],
    take_part: &[NodeId],
    idle: &[NodeId],
    now_ms: u64,
) -> Vec<DirectiveStatus> {
    let (mut last, mut asked_by) = (BTreeMap::new(), BTreeMap::new());
    for (at, (node, issued)) in issued.iter().enumerate() {
        if let Some((subject, asked_ms)) = issued.directive.as_ref().and_then(replaced) {
            // Directives of one node count in their own order, whatever its clock does (CLEAR-D7).
            let latest_ms = asked_by.entry(*node).or_insert(asked_ms);
            *latest_ms = asked_ms.max(*latest_ms);
            // CLEAR-D11.
            let said = issued.directive.as_ref().and_then(Directive::of_drain);
            let asked_ms = if said.is_some_and(|it| it.again) { asked_ms } else { *latest_ms };
            let newest = last.entry(subject).or_insert((asked_ms, at));
            *newest = (*newest).max((asked_ms, at));
        }
    }
    let is_last = |at: usize, directive: &Directive| {
        let subject = replaced(directive).map(|it| it.0);
        subject.is_none_or(|subject| last.get(&subject).is_some_and(|last| last.1 == at))
    };
    let mut found = Vec::new();
    for (at, (node, issued)) in issued.iter().enumerate() {
        if issued.directive.as_ref().is_some_and(|directive| !is_last(at, directive)) {
            continue;
        }
        let said = issued.directive.as_ref().and_then(Directive::of_drain);
        let concerns = |node: &NodeId| match (said, issued.directive) {
            (Some(said), _) => *node == said.drain.node,
            (None, Some(Directive::Pin(..))) => true,
            // Nobody waits for a node that has nothing to clear (CLEAR-D1): a lock manager answers nothing.
            (None, _) => !idle.contains(node),
        };
        let waiting = take_part.iter().filter(|it| concerns(it));
        let waiting = waiting.filter(|node| !issued.answered_by.contains(node));
        let mut status = DirectiveStatus {
            directive: "clear",
            asked_by: node.0,
            namespace: None,
            drained: None,
            percent: None,
            left_s: None,
            unanswered: waiting.map(|node| node.0).collect(),
            refused: issued.refused_by.iter().map(|node| node.0).collect(),
        };
        match issued.directive {
            None => status.directive = "damaged",
            Some(Directive::Void) => continue,
            Some(Directive::Clear(namespace) | Directive::ClearPool(namespace)) => {
                status.namespace = namespace.map(|namespace| namespace.to_string());
            }
            Some(Directive::Drain(Drain { node, .. }) | Directive::Drained(Drain { node, .. })) => {
                (status.directive, status.drained) = ("drain", Some(node.0));
            }
            Some(
                Directive::Undrain(Drain { node, .. }) | Directive::NotDrained(Drain { node, .. }),
            ) => (status.directive, status.drained) = ("undrain", Some(node.0)),
            Some(Directive::Unpin { namespace, .. }) => {
                status.directive = "unpin";
                status.namespace = Some(namespace.to_string());
            }
            Some(Directive::Pin(namespace, pin)) => {
                let left_ms = pin.asked_ms.saturating_add(pin.length_ms).saturating_sub(now_ms);
                status.directive = "pin";
                status.namespace = Some(namespace.to_string());
                status.percent = Some(pin.percent);
                status.left_s = Some(left_ms.div_ceil(1000));
            }
        }
        let in_force = match status.left_s {
            Some(left) => left > 0,
            None => status.directive == "drain" || !status.unanswered.is_empty(),
        };
        if in_force {
            found.push(status);
        }
    }
    found
}

/// What a later directive replaces an earlier one of.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The namespace with this tag, pinned or not.
    Namespace(u16),
    /// A node, drained or not.
    Node(u16),
}

/// What a later directive replaces, and when this one was asked for.
fn replaced(directive: &Directive) -> Option<(Subject, u64)> {
    let of = |namespace: &kv_cache::Namespace| Subject::Namespace(namespace.tag().get());
    match directive {
        Directive::Clear(_) | Directive::ClearPool(_) | Directive::Void => None,
        Directive::Pin(namespace, pin) => Some((of(namespace), pin.asked_ms)),
        Directive::Unpin { namespace, asked_ms } => Some((of(namespace), *asked_ms)),
        Directive::Drain(drain)
        | Directive::Undrain(drain)
        | Directive::Drained(drain)
        | Directive::NotDrained(drain) => Some((Subject::Node(drain.node.0), drain.asked_ms)),
    }
}

impl DirectiveStatus {
    /// What was asked for, and by whom.
    pub(crate) fn in_words(&self) -> String {
        let what = match (self.percent, self.left_s) {
            (Some(percent), Some(left)) => {
                let minutes = left.div_ceil(60);
                format!(" ({percent} % of each node, {minutes} min left)")
            }
            _ => String::new(),
        };
        let of = match (&self.namespace, self.drained) {
            (Some(namespace), _) => format!("of namespace {namespace}"),
            (None, Some(node)) => format!("of node {node}"),
            (None, None) => "of all namespaces".to_owned(),
        };
        format!("{} {of}{what}, asked for by node {}", self.directive, self.asked_by)
    }
}

/// A line for each that nothing is wrong with.
pub(crate) fn print(directives: &[DirectiveStatus]) {
    for status in directives {
        let is_answered = status.unanswered.is_empty() && status.refused.is_empty();
        // A finding tells of drains.
        if is_answered && !matches!(status.directive, "damaged" | "drain") {
            say!("{}: all nodes have answered", status.in_words());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_cache::{Namespace, Pin};

    fn issued(node: u16, directive: Directive, answered_by: &[u16]) -> (NodeId, IssuedDirective) {
        let answered_by = answered_by.iter().map(|node| NodeId(*node)).collect();
        let directive = Some(directive);
        (NodeId(node), IssuedDirective { number: 1, directive, answered_by, refused_by: vec![] })
    }

    fn shown(issued: &[(NodeId, IssuedDirective)], now_ms: u64) -> Vec<(&'static str, u16)> {
        let found = select(issued, &[NodeId(0), NodeId(1)], &[], now_ms);
        found.iter().map(|status| (status.directive, status.asked_by)).collect()
    }

    #[test]
    fn a_node_without_blocks_is_not_waited_for() {
        let namespace = Namespace::new("one", b"");
        let pin = Pin { percent: 20, length_ms: 5000, asked_ms: 1000 };
        let mut damaged = issued(3, Directive::Void, &[0]);
        damaged.1.directive = None;
        let all = [
            issued(0, Directive::Clear(None), &[0]),
            issued(
                1,
                Directive::Unpin { namespace: Namespace::new("two", b""), asked_ms: 1 },
                &[0],
            ),
            issued(2, Directive::Pin(namespace, pin), &[0]),
            damaged,
        ];
        let shown = |idle: &[NodeId]| {
            let found = select(&all, &[NodeId(0), NodeId(1)], idle, 3000);
            let name = |status: &DirectiveStatus| (status.directive, status.unanswered.clone());
            found.iter().map(name).collect::<Vec<_>>()
        };
        let waits = |directive| (directive, vec![1]);
        assert_eq!(shown(&[]), ["clear", "unpin", "pin", "damaged"].map(waits));
        assert_eq!(shown(&[NodeId(1)]), [waits("pin")], "it may have blocks before the pin ends");
    }

    #[test]
    fn only_what_is_in_force_is_shown() {
        let (one, two) = (Namespace::new("one", b""), Namespace::new("two", b""));
        let pin = |asked_ms| Pin { percent: 20, length_ms: 5000, asked_ms };
        let all = [
            issued(0, Directive::Clear(Some(one)), &[0]),
            issued(0, Directive::Clear(None), &[0, 1]),
            issued(1, Directive::Pin(one, pin(1000)), &[0, 1]),
            issued(1, Directive::Pin(two, pin(1000)), &[]),
            issued(2, Directive::Pin(one, pin(2000)), &[0]),
            issued(3, Directive::Unpin { namespace: two, asked_ms: 500 }, &[]),
        ];
        assert_eq!(shown(&all, 3000), [("clear", 0), ("pin", 1), ("pin", 2)]);
        assert_eq!(shown(&all, 6000), [("clear", 0), ("pin", 2)], "their time is over");
        let unpinned = issued(0, Directive::Unpin { namespace: one, asked_ms: 2500 }, &[0]);
        let mut all = all.to_vec();
        all.insert(0, unpinned);
        assert_eq!(shown(&all, 3000), [("unpin", 0), ("clear", 0), ("pin", 1)]);
        all[0].1.answered_by = vec![NodeId(0), NodeId(1)];
        assert_eq!(shown(&all, 3000), [("clear", 0), ("pin", 1)]);
        let drain = |asked_ms| kv_cache::Drain { node: NodeId(1), asked_ms };
        let back = [
            issued(0, Directive::Drain(drain(900)), &[]),
            issued(0, Directive::Undrain(drain(100)), &[]),
        ];
        assert_eq!(shown(&back, 3000), [("undrain", 0)], "the clock of node 0 went back");
        let found = select(&all, &[NodeId(0), NodeId(1)], &[], 3001);
        assert_eq!((found[1].left_s, &found[1].unanswered), (Some(3), &vec![0, 1]));
        // A drain is in force until its node is not drained any more, and concerns that node alone.
        let drain = |node, asked_ms| Drain { node: NodeId(node), asked_ms };
        let mut drained = [
            issued(0, Directive::Drain(drain(1, 5)), &[1]),
            issued(0, Directive::Drain(drain(7, 5)), &[]),
            issued(1, Directive::Undrain(drain(1, 4)), &[]),
        ];
        assert_eq!(shown(&drained, 3000), [("drain", 0), ("drain", 0)]);
        let found = select(&drained, &[NodeId(0), NodeId(1)], &[], 3000);
        assert_eq!((found[0].drained, &found[0].unanswered), (Some(1), &vec![]));
        // Said again, it counts by the time of the drain, whatever else its node asked for (CLEAR-D11).
        let again = [
            issued(0, Directive::Drain(drain(7, 50)), &[]),
            issued(0, Directive::Drained(drain(1, 5)), &[1]),
            issued(1, Directive::Undrain(drain(1, 6)), &[]),
        ];
        assert_eq!(shown(&again, 3000), [("drain", 0), ("undrain", 1)]);
        assert_eq!(shown(&again[..2], 3000), [("drain", 0), ("drain", 0)]);
        let ended = [again[1].clone(), issued(1, Directive::NotDrained(drain(1, 6)), &[1])];
        assert_eq!(shown(&ended, 3000), []);
        drained[2] = issued(1, Directive::Undrain(drain(1, 6)), &[]);
        assert_eq!(shown(&drained, 3000), [("drain", 0), ("undrain", 1)]);
        // What cannot be read is shown while somebody waits for it, and void requests never are.
        let mut damaged = issued(4, Directive::Void, &[0]);
        assert_eq!(shown(&[damaged.clone()], 3000), []);
        damaged.1.directive = None;
        assert_eq!(shown(&[damaged], 3000), [("damaged", 4)]);
    }
}
