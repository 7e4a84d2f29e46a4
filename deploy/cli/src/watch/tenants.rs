//! What the blocks of tenants take. The region has tags of their namespaces, and no names.

use std::collections::BTreeMap;

use serde::Serialize;

use super::blocks::NodeBlocks;

/// Tenants that are listed.
const LISTED_MAX: usize = 8;

/// The blocks of one namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct TenantBlocks {
    /// Blocks that can be read.
    pub(crate) blocks: u64,
    /// Bytes of their payload.
    pub(crate) bytes: u64,
}

impl TenantBlocks {
    pub(crate) fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
    }
}

/// A tenant, by the tag of its namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Tenant {
    pub(crate) namespace: u16,
    #[serde(flatten)]
    pub(crate) blocks: TenantBlocks,
}

/// The tenants that take most.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Tenants {
    pub(crate) largest: Vec<Tenant>,
    /// How many others there are.
    pub(crate) others: usize,
    /// What the others take.
    pub(crate) others_blocks: TenantBlocks,
}

impl Tenants {
    /// Of the blocks of all nodes.
    pub(crate) fn of(blocks: &[NodeBlocks]) -> Self {
        let mut all: BTreeMap<u16, TenantBlocks> = BTreeMap::new();
        for (namespace, its) in blocks.iter().flat_map(|node| &node.tenants) {
            all.entry(*namespace).or_default().add(*its);
        }
        let mut largest: Vec<_> =
            all.into_iter().map(|(namespace, blocks)| Tenant { namespace, blocks }).collect();
        largest.sort_by_key(|it| (std::cmp::Reverse(it.blocks.bytes), it.namespace));
        let rest = largest.split_off(largest.len().min(LISTED_MAX));
        let mut others_blocks = TenantBlocks::default();
        rest.iter().for_each(|it| others_blocks.add(it.blocks));
        Self { largest, others: rest.len(), others_blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_tenants_are_listed_and_the_others_summed_up() {
        let node = |tenants: &[(u16, u64)]| NodeBlocks {
            tenants: tenants
                .iter()
                .map(|(namespace, bytes)| (*namespace, TenantBlocks { blocks: 1, bytes: *bytes }))
                .collect(),
            ..Default::default()
        };
        let many: Vec<_> =
            (0..10).map(|namespace| (namespace, 10 + u64::from(namespace))).collect();
        let tenants = Tenants::of(&[node(&many), node(&[(3, 100)])]);
        let listed: Vec<_> =
            tenants.largest.iter().map(|it| (it.namespace, it.blocks.bytes)).collect();
        assert_eq!(
            listed,
            [3, 9, 8, 7, 6, 5, 4, 2].map(|it| (it, if it == 3 { 113 } else { 10 + u64::from(it) }))
        );
        assert_eq!(
            (tenants.others, tenants.others_blocks),
            (2, TenantBlocks { blocks: 2, bytes: 21 })
        );
        assert_eq!(Tenants::of(&[]), Tenants::default());
    }
}
