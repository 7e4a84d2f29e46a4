//! What each node moved between two looks.

use std::collections::BTreeMap;

use crate::status::{NodeStatus, Status};

/// What a node did a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct NodeRate {
    pub(super) fetched_bytes: f64,
    pub(super) published_bytes: f64,
    /// Hits of the blocks that were looked up, from 0 to 1; none when nothing was looked up.
    pub(super) hit_rate: Option<f64>,
}

/// By node. A node that joined between the two looks has no rate.
#[derive(Debug, Default)]
pub(super) struct NodeRates(BTreeMap<u16, NodeRate>);

impl NodeRates {
    pub(super) fn between(before: &Status, now: &Status, took_ms: u64) -> Self {
        let rate = |node: &NodeStatus| {
            let earlier = before.nodes.iter().find(|it| {
                it.node == node.node
                    && it.incarnation == node.incarnation
                    && it.summary.state != "unreadable"
            })?;
            Some((node.node, rate(earlier, node, took_ms)?))
        };
        Self(now.nodes.iter().filter_map(rate).collect())
    }

    pub(super) fn of(&self, node: u16) -> Option<&NodeRate> {
        self.0.get(&node)
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown to a few digits")]
fn rate(before: &NodeStatus, now: &NodeStatus, took_ms: u64) -> Option<NodeRate> {
    let (then, now) = (&before.summary.counted, &now.summary.counted);
    let fetched = now.fetched_bytes.checked_sub(then.fetched_bytes)?;
    let published = now.published_bytes.checked_sub(then.published_bytes)?;
    let asked = now.lookup_blocks.checked_sub(then.lookup_blocks)?;
    let hits = now.lookup_hits.checked_sub(then.lookup_hits)?;
    let per_second = |count: u64| count as f64 * 1e3 / took_ms.max(1) as f64;
    Some(NodeRate {
        fetched_bytes: per_second(fetched),
        published_bytes: per_second(published),
        hit_rate: (asked > 0).then(|| hits as f64 / asked as f64),
    })
}
