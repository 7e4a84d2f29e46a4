//! Quotas and pins: how much of this node's payload a namespace may keep when room is short.
//!
//! They lie in the host's DRAM, for all processes of the host: a version that changes with every
//! change, and entries of three words: {present, tag}, {bytes, or 1 bit and percent}, and of a pin
//! {number of the pin u16, milliseconds left u48}. The heap lock protects them.
//!
//! - **CLEAR-D5** A pin is a quota for a time: its blocks leave last, and still leave when there is
//!   nothing else. The time left is a word of the host. Every process of the host lowers it in its
//!   upkeep, by its own clock, and none raises it. The pin ends with the host's last process.

use std::collections::BTreeMap;

use cxl_shm::fabric::HostMemory;

use crate::format::{Directive, Pin, halves};
use crate::identity::NamespaceTag;

/// Most namespaces with a quota on one host.
pub const QUOTAS_MAX: usize = 64;
/// Words of the table.
pub(crate) const QUOTA_WORDS: usize = 1 + 3 * QUOTAS_MAX;

/// Most of a node's payload that a pin may cover, in percent: the rest is for all others.
pub const PERCENT_MAX: u16 = 50;
/// Longest time of a pin: 365 days.
pub(crate) const PIN_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1000;

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

/// What a namespace may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub(crate) namespace: NamespaceTag,
    pub(crate) quota: Quota,
    /// A pin: what is over it leaves like blocks without a quota, not first.
    pub(crate) pinned: bool,
}

/// When the pins end that this process knows, by its clock; by entry and number of the pin.
pub(crate) type PinEnds = BTreeMap<(usize, u64), u64>;

/// Bits of the time that is left in the word of a pin.
const LEFT_BITS: u32 = 48;

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

    /// All quotas and pins.
    pub(crate) fn all(&self) -> Vec<Share> {
        (0..QUOTAS_MAX).filter_map(|entry| self.read(entry)).collect()
    }

    /// Pins a namespace: `percent` of the node's payload, for `length_ms`. False, and nothing is
    /// changed, when it has a quota, which stays; or when the table is full.
    pub(crate) fn pin(&self, namespace: NamespaceTag, percent: u16, length_ms: u64) -> bool {
        let entries = || (0..QUOTAS_MAX).map(|entry| (entry, self.read(entry)));
        let own = entries().find(|(_, it)| it.is_some_and(|it| it.namespace == namespace));
        if own.is_some_and(|(_, it)| it.is_some_and(|it| !it.pinned)) {
            return false;
        }
        let Some((entry, _)) = own.or_else(|| entries().find(|(_, it)| it.is_none())) else {
            return false;
        };
        let at = self.at(entry);
        let number = (self.words.load(at + 2) >> LEFT_BITS).wrapping_add(1) & u64::from(u16::MAX);
        let left_ms = length_ms.clamp(1, (1 << LEFT_BITS) - 1);
        // A process that dies between these stores leaves no pin.
        self.words.store(at, 0);
        self.words.store(at + 1, Quota::Percent(percent).word());
        self.words.store(at + 2, number << LEFT_BITS | left_ms);
        self.words.store(at, PRESENT | u64::from(namespace.0));
        self.change();
        true
    }

    /// Carries out a pin or an unpin. Returns false when a pin is not set.
    pub(crate) fn carry_out(&self, directive: &Directive) -> bool {
        match directive {
            Directive::Pin(namespace, Pin { percent, length_ms, .. }) => {
                // Whatever the line says.
                let percent = (*percent).min(PERCENT_MAX);
                return self.pin(namespace.tag(), percent, (*length_ms).min(PIN_MS_MAX));
            }
            Directive::Unpin { namespace, .. } => self.unpin(namespace.tag()),
            Directive::Clear(_)
            | Directive::ClearPool(_)
            | Directive::Drain(_)
            | Directive::Undrain(_)
            | Directive::Drained(_)
            | Directive::NotDrained(_)
            | Directive::Void => {}
        }
        true
    }

    /// Ends the pin of a namespace, if there is one.
    pub(crate) fn unpin(&self, namespace: NamespaceTag) {
        let is = |entry: &usize| {
            self.read(*entry).is_some_and(|it| it.pinned && it.namespace == namespace)
        };
        if let Some(entry) = (0..QUOTAS_MAX).find(is) {
            self.end(entry);
        }
    }

    /// Lowers the time left of all pins, and ends the pins whose time is over. `ends` holds what
    /// this process knows.
    pub(crate) fn count_down(&self, ends: &mut PinEnds, now_ms: u64) {
        let mut known = PinEnds::new();
        for entry in 0..QUOTAS_MAX {
            if !self.read(entry).is_some_and(|share| share.pinned) {
                continue;
            }
            let word = self.words.load(self.at(entry) + 2);
            let (number, left_ms) = (word >> LEFT_BITS, word & ((1 << LEFT_BITS) - 1));
            let pin = (entry, number);
            let end_ms = ends.get(&pin).copied().unwrap_or(now_ms.saturating_add(left_ms));
            let left_ms = left_ms.min(end_ms.saturating_sub(now_ms));
            if left_ms == 0 {
                self.end(entry);
            } else {
                self.words.store(self.at(entry) + 2, number << LEFT_BITS | left_ms);
                known.insert(pin, end_ms);
            }
        }
        *ends = known;
    }

    fn end(&self, entry: usize) {
        self.words.store(self.at(entry), 0);
        let number = self.words.load(self.at(entry) + 2) >> LEFT_BITS;
        // The next pin in this entry has another number.
        self.words.store(self.at(entry) + 2, number << LEFT_BITS);
        self.change();
    }

    fn change(&self) {
        self.words.store(self.first, self.version().wrapping_add(1));
    }

    /// Gives a namespace another quota, or none.
    pub(crate) fn set(
        &self,
        namespace: NamespaceTag,
        quota: Option<Quota>,
    ) -> Result<(), TooManyQuotas> {
        let is = |entry: &usize| self.read(*entry).is_some_and(|it| it.namespace == namespace);
        let found = (0..QUOTAS_MAX).find(is);
        // A quota replaces a pin.
        let present = found.and_then(|entry| self.read(entry));
        if present.is_none_or(|it| !it.pinned) && present.map(|it| it.quota) == quota {
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
                let number = self.words.load(at + 2) >> LEFT_BITS;
                self.words.store(at + 2, number << LEFT_BITS);
                self.words.store(at, PRESENT | u64::from(namespace.0));
            }
            self.change();
        }
        Ok(())
    }

    fn read(&self, entry: usize) -> Option<Share> {
        let name = self.words.load(self.at(entry));
        let tag = NamespaceTag(u16::from_le_bytes([name.to_le_bytes()[0], name.to_le_bytes()[1]]));
        let left_ms = self.words.load(self.at(entry) + 2) & ((1 << LEFT_BITS) - 1);
        (name & PRESENT != 0).then(|| Share {
            namespace: tag,
            quota: Quota::from_word(self.words.load(self.at(entry) + 1)),
            pinned: left_ms > 0,
        })
    }

    fn at(&self, entry: usize) -> usize {
        self.first + 1 + 3 * entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Namespace;
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
        let quota = |number| all.iter().find(|it| it.namespace == tag(number)).map(|it| it.quota);
        assert_eq!(quota(99), Some(Quota::Percent(25)));
        assert_eq!((quota(8), quota(7)), (Some(Quota::Bytes(8)), None));
        assert_eq!(Quota::Percent(25).bytes(4000), 1000);
    }

    #[test]
    fn a_pin_ends_by_the_time_of_all_processes_together() {
        let rack = SimulatedRack::sticky(1, 4096);
        let table = QuotaTable::new(rack.host_memory(0, 3 + QUOTA_WORDS), 3);
        let (pinned, other) = (NamespaceTag(7), NamespaceTag(8));
        table.set(other, Some(Quota::Percent(9))).unwrap();
        assert!(!table.pin(other, 10, 1000), "a quota stays");
        assert!(table.pin(pinned, 10, 1000));
        let is_pinned = || table.all().iter().any(|it| it.pinned && it.namespace == pinned);
        // Clocks of two processes, which begin at different moments.
        let (mut first, mut second) = (PinEnds::new(), PinEnds::new());
        table.count_down(&mut first, 50_000);
        table.count_down(&mut first, 50_600);
        table.count_down(&mut second, 7);
        table.count_down(&mut first, 50_900);
        assert!(is_pinned());
        // The first has ended; its time stays counted.
        table.count_down(&mut second, 7 + 399);
        assert!(is_pinned());
        table.count_down(&mut second, 7 + 400);
        assert!(!is_pinned());
        // Pinned again, for as long as it is said now.
        assert!(table.pin(pinned, 10, 1000));
        table.count_down(&mut second, 500);
        assert!(table.pin(pinned, 20, 5000), "anew");
        table.count_down(&mut second, 2000);
        assert!(is_pinned());
        let version = table.version();
        table.unpin(pinned);
        table.unpin(other);
        assert_eq!(table.all().len(), 1, "a quota is no pin");
        assert_ne!(table.version(), version);
        assert!(table.pin(pinned, 10, 1000));
        table.set(pinned, Some(Quota::Percent(10))).unwrap();
        assert!(!is_pinned(), "a quota takes its place");
    }

    #[test]
    fn whatever_a_pin_says_the_table_bounds_it() {
        let rack = SimulatedRack::sticky(1, 4096);
        let table = QuotaTable::new(rack.host_memory(0, 3 + QUOTA_WORDS), 3);
        let namespace = Namespace::new("tenant", b"");
        let pin = Pin { percent: u16::MAX, length_ms: u64::MAX, asked_ms: 0 };
        assert!(table.carry_out(&Directive::Pin(namespace, pin)));
        let half = Quota::Percent(PERCENT_MAX);
        let share = Share { namespace: namespace.tag(), quota: half, pinned: true };
        assert_eq!(table.all(), [share]);
        assert!(table.carry_out(&Directive::Unpin { namespace, asked_ms: 1 }));
        assert_eq!(table.all(), []);
        table.set(namespace.tag(), Some(Quota::Bytes(1))).unwrap();
        assert!(!table.carry_out(&Directive::Pin(namespace, pin)), "the quota stays");
        assert_eq!(table.all().len(), 1);
    }
}
