//! The queue of one device: restores by their deadlines, refused before they wait in vain.
//!
//! - **AGENT-Q1** A restore is queued only when the estimate says that it ends before its deadline,
//!   and that those in the queue still do. What is refused is known at once to its asker.
//! - **AGENT-Q2** The restore with the first deadline begins first.
//! - **AGENT-Q3** A restore whose deadline has passed before it began is not begun.
//! - **AGENT-Q4** A restore that something waits for is not refused because it makes a prefetch late, which
//!   nothing waits for. Prefetches are queued while the queue is at most half full.
//! - **AGENT-Q5** A device that has read nothing for a second is tried with one restore that the
//!   estimate would refuse: it may be faster again.

use std::collections::BTreeMap;

use super::Speed;

/// How long after its last read a device is tried again that is believed to be too slow.
const TRY_AGAIN_US: u64 = 1_000_000;

/// A block that is to be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Queued<T> {
    /// What the queue gives back.
    pub(crate) restore: T,
    /// Length of the block in bytes.
    pub(crate) bytes: u32,
    /// Until when it is of use, in microseconds of this host's clock.
    pub(crate) deadline_us: u64,
    /// How long computing the block takes, in microseconds, where the asker says so.
    pub(crate) recompute_us: Option<u64>,
    /// Whether it is a prefetch.
    pub(crate) ahead: bool,
}

/// Why a restore is not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum NotQueued {
    /// It would end after its deadline, or make another one do so, or take longer than computing.
    #[error("the drive would take {wait_us} us, which is too late")]
    TooLate {
        /// The estimate, in microseconds.
        wait_us: u64,
    },
    /// The queue has as many as it may.
    #[error("the queue of the drive has {0} restores, which is its limit")]
    Busy(usize),
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next<T> {
    /// Begin to read. [`RestoreQueue::ended`] is told the number when that is over.
    Begin(u64, T),
    /// Its time is over (AGENT-Q3).
    Late(T),
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    bytes: u32,
    began_us: u64,
}

/// Restores of one device, in memory.
#[derive(Debug)]
pub(crate) struct RestoreQueue<T> {
    /// By deadline, then by arrival (AGENT-Q2).
    waiting: BTreeMap<(u64, u64), Queued<T>>,
    under_way: BTreeMap<u64, UnderWay>,
    speed: Speed,
    depth: usize,
    most: usize,
    next_number: u64,
    /// When the device ended a read last, or was tried.
    tried_us: u64,
}

impl<T> RestoreQueue<T> {
    /// A queue that has at most `most` restores waiting, and `depth` under way.
    #[must_use]
    pub(crate) fn new(depth: usize, most: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            under_way: BTreeMap::new(),
            speed: Speed::default(),
            depth: depth.max(1),
            most,
            next_number: 0,
            tried_us: 0,
        }
    }

    /// Queues a restore (AGENT-Q1).
    ///
    /// # Errors
    /// The restore, and why it is not queued.
    pub(crate) fn offer(&mut self, now_us: u64, new: Queued<T>) -> Result<(), (T, NotQueued)> {
        let most = if new.ahead { self.most / 2 } else { self.most };
        if self.waiting.len() >= most {
            return Err((new.restore, NotQueued::Busy(self.waiting.len())));
        }
        let mut before: u64 = self.under_way.values().map(|it| u64::from(it.bytes)).sum();
        let mut wait_us = None;
        let mut makes_late = false;
        for ((deadline_us, _), other) in &self.waiting {
            if wait_us.is_none() && *deadline_us > new.deadline_us {
                before += u64::from(new.bytes);
                wait_us = Some(self.speed.wait_us(before));
            }
            before += u64::from(other.bytes);
            let ends_us = now_us.saturating_add(self.speed.wait_us(before));
            // AGENT-Q4.
            let counts = new.ahead || !other.ahead;
            makes_late |= counts && wait_us.is_some() && ends_us > *deadline_us;
        }
        let wait_us = wait_us.unwrap_or_else(|| self.speed.wait_us(before + u64::from(new.bytes)));
        let ends_late = now_us.saturating_add(wait_us) > new.deadline_us;
        let is_slower = new.recompute_us.is_some_and(|recompute_us| wait_us > recompute_us);
        if (ends_late || makes_late || is_slower) && !self.tries_again(now_us, &new) {
            return Err((new.restore, NotQueued::TooLate { wait_us }));
        }
        self.next_number += 1;
        self.waiting.insert((new.deadline_us, self.next_number), new);
        Ok(())
    }

    /// AGENT-Q5. Only a restore that a device in its best state would bring in time.
    fn tries_again(&mut self, now_us: u64, new: &Queued<T>) -> bool {
        let best_us = Speed::default().wait_us(new.bytes.into());
        let limit_us = new.recompute_us.unwrap_or(u64::MAX);
        let tries = self.reads() == 0
            && now_us.saturating_sub(self.tried_us) >= TRY_AGAIN_US
            && best_us <= limit_us.min(new.deadline_us.saturating_sub(now_us));
        if tries {
            self.tried_us = now_us;
        }
        tries
    }

    /// What to do next; `None` when the device has enough to do, or nothing waits.
    pub(crate) fn next(&mut self, now_us: u64) -> Option<Next<T>> {
        let (deadline_us, number) = *self.waiting.first_key_value()?.0;
        let is_late = deadline_us <= now_us;
        if !is_late && self.under_way.len() >= self.depth {
            return None;
        }
        let Queued { restore, bytes, .. } = self.waiting.remove(&(deadline_us, number))?;
        if is_late {
            return Some(Next::Late(restore));
        }
        self.under_way.insert(number, UnderWay { bytes, began_us: now_us });
        self.speed.began(now_us);
        Some(Next::Begin(number, restore))
    }

    /// A restore is over. `read` says whether its bytes have arrived.
    pub(crate) fn ended(&mut self, now_us: u64, number: u64, read: bool) {
        let Some(UnderWay { bytes, began_us }) = self.under_way.remove(&number) else { return };
        self.tried_us = now_us;
        if read {
            self.speed.arrived(began_us, now_us, bytes.into());
        } else {
            self.speed.failed(now_us);
        }
    }

    /// How many wait or are under way.
    #[must_use]
    pub(crate) fn reads(&self) -> usize {
        self.waiting.len() + self.under_way.len()
    }

    /// How many were ever queued.
    #[must_use]
    pub(crate) fn queued(&self) -> u64 {
        self.next_number
    }

    /// Takes out all that wait.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().map(|it| it.restore).collect()
    }

    /// The restores under way that began before `before_us`: their device does not answer.
    #[must_use]
    pub(crate) fn began_before(&self, before_us: u64) -> Vec<u64> {
        let old = self.under_way.iter().filter(|(_, it)| it.began_us < before_us);
        old.map(|(number, _)| *number).collect()
    }
}

#[cfg(test)]
mod tests;
