//! Quotas: how much of this node's payload a namespace may keep when room is short.
//!
//! In the host's DRAM, for all processes of the host: a version that changes with every change, and
//! entries of two words {present, tag} and {bytes, or 1 bit and percent}. Under the heap lock.

use cxl_shm::fabric::HostMemory;

use crate::format::halves;
use crate::identity::NamespaceTag;

/// Most namespaces with a quota on one host.
pub const QUOTAS_MAX: usize = 64;
/// Words of the table.
pub(crate) const QUOTA_WORDS: usize = 1 + 2 * QUOTAS_MAX;

const PRESENT: u64 = 1 << 63;
const IS_SHARE: u64 = 1 << 63;

/// How much a namespace may keep in the blocks that one node owns, when room is short. While there
/// is room nobody is kept from using it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// So many bytes of payload.
    Bytes(u64),
    /// So many percent of the node's payload.
    Percent(u16),
}

impl Quota {
    /// The quota in bytes, on a node with room for `capacity_bytes` of payload.
    pub(crate) fn bytes(self, capacity_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(share) => {
                u64::try_from(u128::from(capacity_bytes) * u128::from(share) / 100)
                    .unwrap_or(u64::MAX)
            }
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes & !IS_SHARE,
            Self::Percent(share) => IS_SHARE | u64::from(share),
        }
    }

    fn from_word(word: u64) -> Self {
        let (low, _) = halves(word);
        match word & IS_SHARE {
            0 => Self::Bytes(word),
            _ => Self::Percent(u16::try_from(low).unwrap_or(u16::MAX)),
        }
    }
}

/// More namespaces with quotas than a host has room for. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{QUOTAS_MAX} namespaces already have a quota on this host; remove one of these quotas first"
)]
pub struct TooManyQuotas;

/// The quotas of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaTable<W> {
    words: W,
    first: usize,
}

impl<W: HostMemory> QuotaTable<W> {
    /// The table in `words` from word `first` on.
    pub(crate) fn new(words: W, first: usize) -> Self {
        Self { words, first }
    }

    /// Changes with every change.
    pub(crate) fn version(&self) -> u64 {
        self.words.load(self.first)
    }

    /// All quotas.
    pub(crate) fn all(&self) -> Vec<(NamespaceTag, Quota)> {
        (0..QUOTAS_MAX).filter_map(|entry| self.read(entry)).collect()
    }

    /// Gives a namespace another quota, or none.
    pub(crate) fn set(
        &self,
        namespace: NamespaceTag,
        quota: Option<Quota>,
    ) -> Result<(), TooManyQuotas> {
        let is = |entry: &usize| self.read(*entry).is_some_and(|(tag, _)| tag == namespace);
        let found = (0..QUOTAS_MAX).find(is);
        if found.and_then(|entry| self.read(entry)).map(|(_, quota)| quota) == quota {
            return Ok(());
        }
        let entry = match quota {
            None => found,
            Some(_) => {
                let free = || (0..QUOTAS_MAX).find(|entry| self.read(*entry).is_none());
                Some(found.or_else(free).ok_or(TooManyQuotas)?)
            }
        };
        if let Some(entry) = entry {
            let at = self.at(entry);
            // A death in between leaves no quota, or one of a moment ago.
            self.words.store(at, 0);
            if let Some(quota) = quota {
                self.words.store(at + 1, quota.word());
                self.words.store(at, PRESENT | u64::from(namespace.0));
            }
            self.words.store(self.first, self.version().wrapping_add(1));
        }
        Ok(())
    }

    fn read(&self, entry: usize) -> Option<(NamespaceTag, Quota)> {
        let name = self.words.load(self.at(entry));
        let tag = NamespaceTag(u16::from_le_bytes([name.to_le_bytes()[0], name.to_le_bytes()[1]]));
        let quota = || Quota::from_word(self.words.load(self.at(entry) + 1));
        (name & PRESENT != 0).then(|| (tag, quota()))
    }

    fn at(&self, entry: usize) -> usize {
        self.first + 1 + 2 * entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxl_shm::verify::simulated::SimulatedRack;

    #[test]
    fn quotas_are_kept_changed_and_taken_away() {
        let rack = SimulatedRack::sticky(1, 4096);
        let table = QuotaTable::new(rack.host_memory(0, 3 + QUOTA_WORDS), 3);
        let tag = |number: usize| NamespaceTag(u16::try_from(number).unwrap());
        for number in 0..QUOTAS_MAX {
            table.set(tag(number), Some(Quota::Bytes(number as u64))).unwrap();
        }
        let version = table.version();
        assert_eq!(table.set(tag(99), Some(Quota::Percent(1))), Err(TooManyQuotas));
        table.set(tag(7), Some(Quota::Bytes(7))).unwrap();
        table.set(tag(99), None).unwrap();
        assert_eq!(table.version(), version, "nothing has changed");
        table.set(tag(7), None).unwrap();
        table.set(tag(99), Some(Quota::Percent(25))).unwrap();
        assert_ne!(table.version(), version);
        let all = table.all();
        assert_eq!(all.len(), QUOTAS_MAX);
        assert!(all.contains(&(tag(99), Quota::Percent(25))));
        assert!(all.contains(&(tag(8), Quota::Bytes(8))) && !all.iter().any(|it| it.0 == tag(7)));
        assert_eq!(Quota::Percent(25).bytes(4000), 1000);
    }
}
