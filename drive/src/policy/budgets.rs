//! How much of a drive each namespace may keep when room is short.

use std::collections::BTreeMap;

use kv_cache::NamespaceTag;

/// Budgets of namespaces, in bytes of extents. A namespace without one has no limit. While there is
/// room, nobody is kept from using it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Budgets {
    bytes: BTreeMap<u16, u64>,
}

impl Budgets {
    /// Gives a namespace a budget. Of several for one namespace the last counts.
    pub fn set(&mut self, namespace: NamespaceTag, bytes: u64) {
        self.bytes.insert(namespace.get(), bytes);
    }

    /// Which namespaces give how much of `needed` bytes before all others do (DRIVE-P4): the one
    /// furthest over its budget first. `used` says how much a namespace has.
    #[must_use]
    pub fn shares(
        &self,
        needed: u64,
        used: impl Fn(NamespaceTag) -> u64,
    ) -> Vec<(NamespaceTag, u64)> {
        let over = |(tag, budget): (&u16, &u64)| {
            let tag = NamespaceTag::from_bits(*tag);
            (used(tag).saturating_sub(*budget), tag)
        };
        let mut over: Vec<_> = self.bytes.iter().map(over).filter(|(over, _)| *over > 0).collect();
        over.sort_by_key(|(over, tag)| (std::cmp::Reverse(*over), tag.get()));
        let mut open = needed;
        let mut shares = Vec::new();
        for (over, tag) in over {
            let share = over.min(open);
            open -= share;
            if share > 0 {
                shares.push((tag, share));
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_over_their_budgets_give_first_and_not_below() {
        let tag = NamespaceTag::from_bits;
        let mut budgets = Budgets::default();
        for (number, bytes) in [(1, 999), (1, 100), (2, 100), (3, 100)] {
            budgets.set(tag(number), bytes);
        }
        let used = |tag: NamespaceTag| [500, 120, 150, 90][usize::from(tag.get())];
        assert_eq!(budgets.shares(1000, used), [(tag(2), 50), (tag(1), 20)]);
        assert_eq!(budgets.shares(60, used), [(tag(2), 50), (tag(1), 10)]);
        assert_eq!(budgets.shares(10, used), [(tag(2), 10)]);
        assert_eq!(budgets.shares(0, used), []);
        assert_eq!(Budgets::default().shares(1000, used), []);
    }
}
