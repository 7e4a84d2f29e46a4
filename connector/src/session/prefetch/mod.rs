//! Prefetches: blocks on drives that are restored ahead of the lookup that will want them.
//!
//! A prefetch holds nothing and waits for nothing. It asks as a lookup does that waits for drives
//! (`restore`): a window of requests is unanswered at once, in the order of the prompt.

mod table;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use kv_cache::tier::{Found, RestoreState, RestoreTicket};
use kv_cache::{BlockHash, BlockKey, RestoreOutcome, RestoreRequest};

use super::restore::no_room_is_none;
use super::{SessionCore, SessionError};
use crate::dma::DmaEngine;
use crate::options::RestoreOptions;

use table::{Ended, Table, Taken, Want};

/// Why a prefetch did not ask for the blocks behind those that it took up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PrefetchStop {
    /// The next block is neither in the pool nor on a drive.
    Absent,
    /// No agent of this host lives, so nothing is known of drives.
    NoAgent,
    /// The options say that drives are not asked.
    NoWait,
    /// The prefetches of this process have too much under way, or waiting for its use.
    Full,
}

impl PrefetchStop {
    /// A short name, for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Absent => "prefetch_absent",
            Self::NoAgent => "prefetch_no_agent",
            Self::NoWait => "prefetch_no_wait",
            Self::Full => "prefetch_full",
        }
    }
}

impl fmt::Display for PrefetchStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "the next block is neither in the pool nor on a drive",
            Self::NoAgent => {
                "no agent of this host lives: start `rackline agent` here, without drives if it has none"
            }
            Self::NoWait => "drives are not asked: give the prefetch a time to wait",
            Self::Full => {
                "the prefetches of this process have as many blocks under way as they may, or a \
                 quarter of the host's share of the pool: prefetch fewer requests at once"
            }
        })
    }
}

/// What a prefetch took up. The numbers add up to the blocks that were given.
#[derive(Clone, Debug, Default)]
pub struct Prefetch {
    number: u64,
    /// Blocks that it took up, and those of other prefetches that it wants, too.
    wanted: Vec<BlockKey>,
    asked: usize,
    under_way: usize,
    in_pool: usize,
    not_asked: usize,
    stop: Option<PrefetchStop>,
}

impl Prefetch {
    /// Blocks on drives that are asked for: at once, or as soon as earlier ones are answered.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Blocks on drives that another prefetch of this process has asked for, and that have not come.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Blocks that are in the pool.
    #[must_use]
    pub fn in_pool(&self) -> usize {
        self.in_pool
    }

    /// All others: they are behind the end of what can be restored in order.
    #[must_use]
    pub fn not_asked(&self) -> usize {
        self.not_asked
    }

    /// Why these are not asked for; `None` when there are none.
    #[must_use]
    pub fn stop(&self) -> Option<PrefetchStop> {
        self.stop
    }
}

/// What the sessions of a process share about prefetches.
#[derive(Debug)]
pub(crate) struct Prefetches {
    table: Mutex<Table>,
    /// Held by the thread that takes answers and asks; another leaves that to it.
    polling: Mutex<()>,
}

impl Default for Prefetches {
    /// Without a bound in bytes.
    fn default() -> Self {
        Self::of_share(u64::MAX)
    }
}

impl Prefetches {
    /// Those of a process whose host has `share_bytes` of the pool.
    pub(crate) fn of_share(share_bytes: u64) -> Self {
        Self { table: Mutex::new(Table::new(share_bytes / 4)), polling: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether [`SessionCore::poll_prefetches`] is to be called.
    pub(crate) fn is_busy(&self) -> bool {
        self.table().is_busy()
    }

    /// The request of a prefetch that a lookup waits for which wants this block.
    pub(super) fn join(&self, key: &BlockKey, until_ms: u64) -> Option<RestoreTicket> {
        self.table().join(key, until_ms)
    }

    /// Takes a prefetch back.
    pub(crate) fn cancel(&self, prefetch: &Prefetch) {
        self.table().cancel(prefetch.number, &prefetch.wanted);
    }

    /// Leaves the requests that no prefetch waits for.
    pub(super) fn keep_unwanted(&self, tickets: &mut Vec<RestoreTicket>) {
        self.table().keep_unwanted(tickets);
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// Has the blocks of `hashes` restored that are on drives, behind the end of the pool's prefix and in
    /// the order of the prompt, for a lookup that comes later. Returns at once.
    ///
    /// Nothing is held. What does not come within the wait of `restore` is not restored. A lookup finds
    /// the blocks that came in the pool, and [`lookup_and_restore`](Self::lookup_and_restore) waits
    /// for those under way. [`poll_prefetches`](Self::poll_prefetches) has to be called now and then.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn prefetch(
        &self,
        hashes: &[BlockHash],
        restore: RestoreOptions,
    ) -> Result<Prefetch, SessionError> {
        self.cache.check_member()?;
        let keys = self.keys_of(hashes);
        let found = self.cache.find_with_drives(self.clock, &keys);
        let mut prefetch = Prefetch { in_pool: found.pool.len(), ..Prefetch::default() };
        let until_ms = self.clock.now_ms().saturating_add(restore.wait_ms().into());
        let recompute_ms = restore.recompute_ms(found.behind.len());
        let want = |key, node| Want {
            key,
            node,
            bytes: self.options.block_bytes(),
            until_ms,
            recompute_ms,
        };
        let mut table = self.prefetches.table();
        prefetch.number = table.next_number();
        let mut left = found.behind.iter();
        for behind in left.by_ref() {
            match behind {
                Found::InPool(_) => prefetch.in_pool += 1,
                Found::OnDrive { .. } if !restore.waits() => {
                    prefetch.stop = Some(PrefetchStop::NoWait);
                }
                Found::OnDrive { key, node } => {
                    match table.want(prefetch.number, want(*key, *node)) {
                        Taken::Full => prefetch.stop = Some(PrefetchStop::Full),
                        Taken::Up => {
                            prefetch.wanted.push(*key);
                            prefetch.asked += 1;
                        }
                        Taken::UnderWay => {
                            prefetch.wanted.push(*key);
                            prefetch.under_way += 1;
                        }
                    }
                }
            }
            if prefetch.stop.is_some() {
                break;
            }
        }
        if prefetch.stop == Some(PrefetchStop::Full) {
            let on_drive = |it: &&Found| matches!(it, Found::OnDrive { .. });
            table.full(1 + left.filter(on_drive).count());
        }
        let counts = table.take_counts();
        drop(table);
        self.cache.count_prefetches(&counts);
        let reached = prefetch.asked + prefetch.under_way + prefetch.in_pool;
        prefetch.not_asked = keys.len() - reached;
        if prefetch.not_asked > 0 && prefetch.stop.is_none() {
            let own = self.cache.member().node();
            let knows_drives = self.cache.is_drive_agent_alive(self.clock, own);
            let why = if knows_drives { PrefetchStop::Absent } else { PrefetchStop::NoAgent };
            prefetch.stop = Some(why);
        }
        self.poll_prefetches()?;
        Ok(prefetch)
    }

    /// Takes the answers to prefetches of this process, and asks for the next blocks: to be called every
    /// few milliseconds by a program that prefetches. Lookups that wait for drives do so, too. Returns how
    /// many blocks are under way.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn poll_prefetches(&self) -> Result<usize, SessionError> {
        self.cache.check_member()?;
        let Ok(_polling) = self.prefetches.polling.try_lock() else {
            return Ok(self.prefetches.table().under_way());
        };
        self.take_prefetched()?;
        self.ask_for_prefetches()?;
        let mut table = self.prefetches.table();
        let (under_way, unwanted) = (table.under_way(), table.take_unwanted());
        let counts = table.take_counts();
        drop(table);
        self.cache.count_prefetches(&counts);
        if !unwanted.is_empty() {
            no_room_is_none(self.cache.cancel_restores(self.clock, &unwanted))?;
        }
        Ok(under_way)
    }

    /// Takes a prefetch back: what has not come, and no other prefetch or lookup waits for, is not
    /// restored.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn cancel_prefetch(&self, prefetch: &Prefetch) -> Result<(), SessionError> {
        self.cache.check_member()?;
        self.prefetches.cancel(prefetch);
        self.poll_prefetches().map(drop)
    }

    /// Takes all prefetches of the process back: it leaves the pool.
    pub(crate) fn end_prefetches(&self) -> Result<(), SessionError> {
        self.prefetches.table().cancel_all();
        self.poll_prefetches().map(drop)
    }

    /// Counts blocks that a lookup found, and which prefetches brought.
    pub(super) fn found_prefetched(&self, keys: impl Iterator<Item = BlockKey>) {
        let mut table = self.prefetches.table();
        table.found(keys);
        let counts = table.take_counts();
        drop(table);
        self.cache.count_prefetches(&counts);
    }

    /// Takes answers, and ends what is late or has no agent any more.
    fn take_prefetched(&self) -> Result<(), SessionError> {
        let (unanswered, nodes) = {
            let mut table = self.prefetches.table();
            table.end_late(self.clock.now_ms());
            (table.unanswered(), table.nodes())
        };
        let tickets: Vec<_> = unanswered.iter().map(|(_, ticket, _)| *ticket).collect();
        let states = if tickets.is_empty() {
            Vec::new()
        } else {
            no_room_is_none(self.cache.restore_states(&tickets))?.unwrap_or_default()
        };
        let now_ms = self.clock.now_ms();
        for ((key, ticket, until_ms), state) in unanswered.into_iter().zip(states) {
            let how = match state {
                RestoreState::Pending if now_ms < until_ms => continue,
                RestoreState::Pending => {
                    self.prefetches.table().overdue(key, ticket);
                    continue;
                }
                RestoreState::Answered(RestoreOutcome::Restored) => Ended::Restored,
                RestoreState::Answered(RestoreOutcome::TooLate) => Ended::Late,
                RestoreState::Answered(outcome) => {
                    tracing::debug!(?key, outcome = outcome.label(), "a prefetch was refused");
                    Ended::Refused
                }
                // The answer was read too late: the block is there or not.
                RestoreState::Overtaken if self.cache.find_each(&[key]) != [None] => {
                    Ended::Restored
                }
                RestoreState::Overtaken => Ended::Late,
            };
            self.prefetches.table().ended(key, ticket, how);
        }
        for node in nodes {
            if !self.cache.is_drive_agent_alive(self.clock, node) {
                tracing::debug!(%node, "prefetches have ended: the agent does not answer");
                self.prefetches.table().end_node(node);
            }
        }
        Ok(())
    }

    /// Asks for the next blocks, in the order in which prefetches wanted them.
    fn ask_for_prefetches(&self) -> Result<(), SessionError> {
        loop {
            let wants = self.prefetches.table().next_to_ask();
            let Some(node) = wants.first().map(|want| want.node) else { return Ok(()) };
            let now_ms = self.clock.now_ms();
            let request = |want: &Want| RestoreRequest {
                key: want.key,
                wait_ms: u32::try_from(want.until_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX),
                recompute_ms: want.recompute_ms,
                ahead: true,
            };
            let requests: Vec<_> = wants.iter().map(request).collect();
            let asked = self.cache.ask_restore(self.clock, node, &requests);
            let Some(asked) = no_room_is_none(asked)? else {
                self.prefetches.table().end_node(node);
                continue;
            };
            let mut table = self.prefetches.table();
            wants.iter().zip(&asked.tickets).for_each(|(it, ticket)| table.asked(it.key, *ticket));
            if asked.full > 0 {
                table.not_asked(&wants[asked.tickets.len()..]);
                return Ok(());
            }
        }
    }
}
