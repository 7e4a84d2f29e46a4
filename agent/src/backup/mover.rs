//! What copies blocks of this node to its drives, and tells the hosts of the rack.

use std::path::Path;

use crossbeam_channel::Receiver;
use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::crash::{self, CrashPoint};
use kv_cache::tier::{Announced, DriveAnnouncer, DriveError};
use kv_cache::{BlockKey, OwnFeed};
use kv_drive::policy::{BackupOptions, Budgets};
use kv_drive::store::{KeepRoom, Store};
use kv_drive::volume::{CommitError, EncodedBlocks, StoredBlock, Usage};
use rackline::LocalCache;
use rackline::dma::HostDma;

use super::known::KnownBlocks;
use super::turns::Turns;
use super::uses::PoolUses;
use super::writes::{Ended, What, Writes};
use super::{Backlog, Candidate};
use crate::clear::{Clears, Due, Gate};
use crate::drives::TablesRead;
use crate::figures::{DropReason, RefusedBy, SharedFigures};
use crate::reads::Reads;
use crate::settings::BackupSettings;

/// How often the room of the drives is looked at, in milliseconds.
const ROOM_MS: u64 = 1_000;
/// While the directory has no room, blocks that it has no room for are counted anew so many times less
/// often than they would be tried.
const COUNTED_LESS_OFTEN: u64 = 10;
/// How long the agent rests when nothing was to do, in microseconds. Engines need the processors: it
/// neither spins nor yields.
const LOOK_US: u64 = 1_000;
/// The same while blocks wait: a forward may have begun, and takes milliseconds.
const WINDOW_LOOK_US: u64 = 200;
/// Blocks that wait for their age at most.
const WAITING_MAX: usize = 1 << 20;

/// What a [`Mover`] works with.
#[derive(Debug)]
pub(crate) struct BackupParts<'a> {
    /// The pool.
    pub(crate) cache: &'a LocalCache<'a>,
    /// The clock of the process.
    pub(crate) clock: &'a SystemClock,
    /// What copies.
    pub(crate) dma: &'a HostDma,
    /// The drives.
    pub(crate) store: &'a Store,
    /// Whether they are read.
    pub(crate) tables: &'a TablesRead,
    /// What is counted.
    pub(crate) figures: &'a SharedFigures,
    /// Reads of the drives.
    pub(crate) reads: &'a Reads,
    /// Where the slack table is kept.
    pub(crate) folder: &'a Path,
    /// Keys of blocks that restores have found damaged.
    pub(crate) damaged: Receiver<BlockKey>,
    /// Which blocks may be announced.
    pub(crate) gate: &'a Gate,
    /// Identity of the region.
    pub(crate) region: [u64; 2],
}

/// How far the blocks of the drives were announced after the start.
#[derive(Clone, Copy, Debug, Default)]
struct Announcing {
    folder: usize,
    part: usize,
    is_done: bool,
    /// Blocks of encodings that this version cannot read.
    unreadable: usize,
    /// How often tables had been read when it began.
    times: u64,
}

/// How far the blocks of the drives were gone through again.
#[derive(Clone, Copy, Debug, Default)]
struct CatchingUp {
    folder: usize,
    part: usize,
    /// Blocks for which the directory had no room.
    left_out: u64,
}

/// Backs blocks up, on one thread.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    parts: BackupParts<'a>,
    settings: BackupSettings,
    announcer: DriveAnnouncer,
    announcing: Announcing,
    clears: Clears<'a>,
    feed: OwnFeed,
    known: KnownBlocks,
    pool_uses: PoolUses,
    backlog: Backlog,
    writes: Writes,
    turns: Turns,
    /// Bytes that are written and not committed, and when the first of them was written.
    uncommitted: Option<(u64, u64)>,
    /// Some blocks are to be looked at again.
    dropped: bool,
    started_over_ms: u64,
    /// Goes through the blocks of the drives again, because the directory had no room for some.
    catching_up: Option<CatchingUp>,
    caught_up_ms: u64,
    room_ms: u64,
}

impl<'a> Mover<'a> {
    /// One that announces by `announcer`, whose directory is empty.
    #[must_use]
    pub(crate) fn new(
        parts: BackupParts<'a>,
        announcer: DriveAnnouncer,
        settings: &BackupSettings,
    ) -> Self {
        let room: u64 = parts.store.volumes().map(|(_, volume)| volume.usage().room()).sum();
        // As many as there is room for, of the shortest blocks that engines use.
        let drive_blocks = usize::try_from(room / (64 << 10)).unwrap_or(usize::MAX).max(1 << 10);
        let known = KnownBlocks::new(BackupOptions {
            admission: settings.admission,
            backup_age_ms: settings.age_ms,
            waiting_max: WAITING_MAX,
            drive_blocks,
        });
        Self {
            settings: *settings,
            announcer,
            announcing: Announcing::default(),
            clears: Clears::new(parts.gate, parts.region, parts.store.folders()),
            feed: OwnFeed::default(),
            known,
            pool_uses: PoolUses::default(),
            backlog: Backlog::new(settings.backlog_bytes),
            writes: Writes::new(settings.encoding),
            turns: Turns::new(settings.schedule, settings.silent_ms, parts.folder),
            uncommitted: None,
            dropped: false,
            started_over_ms: 0,
            catching_up: None,
            caught_up_ms: 0,
            room_ms: 0,
            parts,
        }
    }

    /// Does what there is to do, and waits for no read. Says whether anything was done.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn turn(&mut self) -> Result<bool, DriveError> {
        let now_ms = self.parts.clock.now_ms();
        // AGENT-C2: before anything is announced.
        let mut is_busy = self.carry_out_clears(now_ms)?;
        is_busy |= self.announce_what_is_there()?;
        is_busy |= self.catch_up(now_ms)?;
        self.withdraw_damaged()?;
        // Before all tables are read a block may be on a drive that is not found there.
        if self.announcing.is_done {
            is_busy |= self.follow(now_ms);
            self.admit(now_ms);
        }
        let BackupParts { cache, clock, reads, .. } = &self.parts;
        self.turns.look(cache, clock.now_us(), reads)?;
        is_busy |= !self.clears.drains(self.parts.store) && self.write();
        is_busy |= self.end_writes();
        self.give_up_late_writes();
        self.commit_when_due(now_ms)?;
        self.keep_room(now_ms)?;
        self.tell_figures();
        Ok(is_busy)
    }

    /// Waits until a write is over, or until it is time for the next look.
    pub(crate) fn rest(&self) {
        self.writes.wait(if self.backlog.is_empty() { LOOK_US } else { WINDOW_LOOK_US });
    }

    /// Writes what waits and is admitted, and makes it durable: the agent stops in order. Blocks that
    /// are not old enough are left out.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn stop(mut self, limit_ms: u64) -> Result<(), DriveError> {
        let clock = self.parts.clock;
        let until_ms = clock.now_ms() + limit_ms;
        self.turns.stop();
        while clock.now_ms() < until_ms && !(self.backlog.is_empty() && self.turns.under_way() == 0)
        {
            if !(self.write() | self.end_writes()) {
                self.writes.wait(LOOK_US);
            }
        }
        self.commit()?;
        self.turns.keep();
        self.tell_figures();
        Ok(())
    }

    /// After the start: announces what the drives have, as far as their tables are read.
    fn announce_what_is_there(&mut self) -> Result<bool, DriveError> {
        let are_read = self.parts.tables.are_read();
        let times = self.parts.tables.times();
        if self.announcing.is_done && self.announcing.times != times {
            // A drive answers again. What is announced already is passed over.
            self.announcing = Announcing { times, ..Announcing::default() };
        }
        let Announcing { folder, part, is_done, .. } = self.announcing;
        // A part is complete when there is another behind it, or when everything is read.
        if is_done || !(are_read || self.parts.store.blocks(folder, part + 1).is_some()) {
            return Ok(false);
        }
        let stopped = self.parts.gate.stopped();
        match self.parts.store.blocks(folder, part) {
            Some(_) if !stopped.is_known(folder) => return Ok(false),
            Some(mut blocks) => {
                // AGENT-C2: those that a clear is to remove.
                blocks.retain(|block| stopped.lets(folder, block.tag));
                let found = blocks.len();
                blocks.retain(StoredBlock::is_readable);
                self.announcing.unreadable += found - blocks.len();
                self.announce(&blocks)?;
                self.announcing.part += 1;
            }
            None if folder + 1 < self.parts.store.folders() => {
                self.announcing.folder += 1;
                self.announcing.part = 0;
            }
            None => {
                self.announcing.is_done = true;
                if self.announcing.unreadable > 0 {
                    tracing::warn!(
                        blocks = self.announcing.unreadable,
                        "blocks on the drives are encoded by a later version, and no host is told of \
                         them; use that version to read them"
                    );
                }
                let blocks = self.announcer.blocks();
                tracing::info!(blocks, "the blocks on the drives are announced");
            }
        }
        Ok(true)
    }

    /// Announces blocks that the directory had no room for, part by part, and counts those for which it
    /// has none still.
    fn catch_up(&mut self, now_ms: u64) -> Result<bool, DriveError> {
        let Some(CatchingUp { folder, part, left_out }) = self.catching_up else {
            let has_room = self.announcer.blocks() < self.announcer.blocks_max();
            let times = if has_room { 1 } else { COUNTED_LESS_OFTEN };
            let wait_ms = self.settings.retry_ms.saturating_mul(times);
            let is_due = now_ms >= self.caught_up_ms.saturating_add(wait_ms);
            if is_due && self.announcing.is_done && self.parts.figures.get().unannounced > 0 {
                self.catching_up = Some(CatchingUp::default());
            }
            return Ok(false);
        };
        let stopped = self.parts.gate.stopped();
        let next = match self.parts.store.blocks(folder, part) {
            // The folder waits for its clears to be known.
            Some(_) if !stopped.is_known(folder) => return Ok(false),
            Some(mut blocks) => {
                blocks.retain(|it| stopped.lets(folder, it.tag) && it.is_readable());
                let left_out = left_out + self.announce_those(&blocks)?;
                Some(CatchingUp { folder, part: part + 1, left_out })
            }
            None if folder + 1 < self.parts.store.folders() => {
                Some(CatchingUp { folder: folder + 1, part: 0, left_out })
            }
            None => {
                self.caught_up_ms = now_ms;
                self.parts.figures.count(|figures| figures.unannounced = left_out);
                None
            }
        };
        self.catching_up = next;
        Ok(true)
    }

    fn announce(&mut self, blocks: &[StoredBlock]) -> Result<(), DriveError> {
        let left_out = self.announce_those(blocks)?;
        self.parts.figures.count(|figures| {
            if left_out > 0 && figures.unannounced == 0 {
                tracing::warn!(
                    most = self.announcer.blocks_max(),
                    "the directory of this node is full: no host finds further blocks until others \
                     leave; format the region with a larger --drive-bytes"
                );
            }
            figures.unannounced += left_out;
        });
        Ok(())
    }

    /// Announces blocks. Says for how many the directory had no room.
    fn announce_those(&mut self, blocks: &[StoredBlock]) -> Result<u64, DriveError> {
        let announced: Vec<_> = blocks
            .iter()
            .map(|block| Announced {
                key: block.key,
                bytes: block.bytes,
                depth: block.depth,
                namespace: block.tag,
            })
            .collect();
        let count = self.announcer.announce(self.parts.cache, &announced)?;
        Ok((announced.len() - count) as u64)
    }

    /// The next step of the clears that nodes asked for (AGENT-C1).
    fn carry_out_clears(&mut self, now_ms: u64) -> Result<bool, DriveError> {
        let BackupParts { cache, clock, store, .. } = self.parts;
        let Some(due) = self.clears.next(cache, store, now_ms)? else { return Ok(false) };
        match due {
            Due::Drain if self.turns.under_way() > 0 => return Ok(false),
            Due::Drain => {
                // Only this thread finds a device silent: a folder that is not is committed.
                let silent = self.parts.store.silent_folders();
                self.commit()?;
                self.clears.drained(&silent);
            }
            Due::Sweep(clears) => {
                cache.clear_own_blocks(clock, |tag| clears.has(tag))?;
                crash::reach(CrashPoint::ClearSwept);
            }
            Due::Withdraw(keys) => _ = self.announcer.withdraw(cache, &keys)?,
            Due::Remove(folder, keys) => {
                self.announcer.withdraw(cache, &keys)?;
                crash::reach(CrashPoint::ClearWithdrawn);
                if let Some(volume) = store.volume(folder) {
                    volume.remove_all(&keys);
                }
                crash::reach(CrashPoint::ClearRemoved);
            }
            Due::Commit => {
                self.commit()?;
                crash::reach(CrashPoint::ClearCommitted);
            }
            Due::Answer(numbers) => self.announcer.answer_clears(cache, &numbers)?,
        }
        Ok(true)
    }

    fn withdraw_damaged(&mut self) -> Result<(), DriveError> {
        let mut damaged: Vec<_> = self.parts.damaged.try_iter().collect();
        // Another folder may have a block that can be read.
        let store = self.parts.store;
        damaged.retain(|key| !store.block(key).is_some_and(|(_, it)| it.is_readable()));
        if !damaged.is_empty() {
            self.announcer.withdraw(self.parts.cache, &damaged)?;
        }
        Ok(())
    }

    fn follow(&mut self, now_ms: u64) -> bool {
        if self.dropped && self.backlog.is_empty() && now_ms >= self.started_over_ms {
            self.dropped = false;
            self.started_over_ms = now_ms + self.settings.retry_ms;
            self.feed.start_over();
        }
        let cache = self.parts.cache;
        let position = cache.own_position();
        let news = cache.follow_own(&mut self.feed);
        let mut used = Vec::new();
        for (block, published) in &news.blocks {
            let is_on_drive = self.parts.store.block(&block.key).is_some();
            // A block that is published again is one that is used again.
            used.extend((is_on_drive && !news.scanned).then_some(block.key));
            if is_on_drive {
                self.pool_uses.watch(block.key, block.handle, position, now_ms);
            }
            let candidate = Candidate::from(block);
            let has_room = match news.scanned {
                true => self.known.found(candidate, position, is_on_drive, now_ms),
                false => self.known.seen(candidate, *published, is_on_drive, now_ms),
            };
            if !has_room {
                self.drop_one(DropReason::TooManyWait);
            }
        }
        used.extend(self.pool_uses.look(now_ms, |handles| cache.own_uses(handles)));
        self.parts.store.used(&used);
        let (keys, handles): (Vec<_>, Vec<_>) = self.known.next_looks(now_ms).into_iter().unzip();
        if !handles.is_empty() {
            for (key, found) in keys.into_iter().zip(self.parts.cache.own_uses(&handles)) {
                self.known.looked(key, found, now_ms);
            }
        }
        !news.blocks.is_empty()
    }

    fn admit(&mut self, now_ms: u64) {
        let now_us = self.parts.clock.now_us();
        while let Some(block) = self.known.due(now_ms) {
            let is_on_drive = self.parts.store.block(&block.key).is_some();
            if !is_on_drive && self.backlog.push(now_us, block).is_none() {
                self.drop_one(DropReason::BacklogFull);
            }
        }
    }

    /// AGENT-B2: no room for a block that would wait.
    fn drop_one(&mut self, why: DropReason) {
        self.dropped = true;
        self.parts.figures.count(|figures| figures.dropped(why));
    }

    /// Begins the writes whose turn it is.
    fn write(&mut self) -> bool {
        let mut blocks = Vec::new();
        while let Some(next) = self.backlog.next()
            && let Some(chosen) = self.turns.next(self.parts.clock.now_us(), next)
        {
            blocks.extend(self.backlog.take(chosen.write).map(|block| (chosen.write, block)));
        }
        if blocks.is_empty() {
            return false;
        }
        let BackupParts { cache, dma, store, .. } = &self.parts;
        // Encoding is slower than most drives: it is left out before the backlog is full (AGENT-B5).
        let hurries = self.backlog.bytes() > self.settings.backlog_bytes / 2;
        let ended = self.writes.begin(cache, dma, store, &blocks, hurries);
        self.take_in(ended);
        true
    }

    fn end_writes(&mut self) -> bool {
        let ended = self.writes.ended();
        let is_busy = !ended.is_empty();
        self.take_in(ended);
        is_busy
    }

    /// AGENT-B6: nothing waits for a device that does not answer.
    fn give_up_late_writes(&mut self) {
        let now_us = self.parts.clock.now_us();
        for write in self.turns.late(now_us) {
            if self.writes.give_up(write) {
                tracing::error!("a drive does not answer: the backup of a block is given up");
                self.turns.ended(now_us, write, 0);
                self.parts.figures.count(|figures| figures.given_up += 1);
                self.try_again_later(now_us / 1000);
            }
        }
    }

    fn take_in(&mut self, ended: Vec<Ended>) {
        let now_ms = self.parts.clock.now_ms();
        let now_us = self.parts.clock.now_us();
        for Ended { write, what } in ended {
            let bytes = if let What::Written { bytes, .. } = &what { *bytes } else { 0 };
            self.turns.ended(now_us, write, bytes);
            match what {
                What::Written { bytes, key, handle } => {
                    let position = self.parts.cache.own_position();
                    self.pool_uses.watch(key, handle, position, now_ms);
                    let (sum, since_ms) = self.uncommitted.unwrap_or((0, now_ms));
                    self.uncommitted = Some((sum + bytes, since_ms));
                    crash::reach(CrashPoint::BackupWritten);
                }
                What::Lost(key) => {
                    self.known.gone(&key);
                    self.parts.figures.count(|figures| figures.lost_before += 1);
                }
                What::Known => {}
                What::Refused(why) => {
                    self.parts.figures.count(|figures| figures.refused_by(why));
                    if why.passes() {
                        self.try_again_later(now_ms);
                    }
                }
            }
        }
    }

    /// A block is on no drive, and may find room later: all are looked at again then.
    fn try_again_later(&mut self, now_ms: u64) {
        self.dropped = true;
        self.started_over_ms = self.started_over_ms.max(now_ms + self.settings.retry_ms);
    }

    /// Blocks that were written, and whose commit failed.
    fn count_not_durable(&mut self) {
        let not_durable = self.parts.store.volumes().map(|(_, it)| it.not_durable()).sum();
        let at = RefusedBy::NotDurable as usize;
        if not_durable > self.parts.figures.get().refused[at] {
            self.parts.figures.count(|figures| figures.refused[at] = not_durable);
            self.try_again_later(self.parts.clock.now_ms());
        }
    }

    fn commit_when_due(&mut self, now_ms: u64) -> Result<(), DriveError> {
        let BackupSettings { commit_ms, commit_bytes, .. } = self.settings;
        let is_due = |(bytes, since_ms): (u64, u64)| {
            bytes >= commit_bytes || now_ms.saturating_sub(since_ms) >= commit_ms
        };
        if self.uncommitted.is_some_and(is_due) { self.commit() } else { Ok(()) }
    }

    /// AGENT-B3: announced after the commit.
    fn commit(&mut self) -> Result<(), DriveError> {
        self.uncommitted = None;
        let (keys, errors) = self.parts.store.commit();
        self.count_not_durable();
        for error in errors {
            match error {
                // What was written there before is committed when the device answers.
                CommitError::Silent => self.uncommitted = Some((0, self.parts.clock.now_ms())),
                error => tracing::error!("blocks are not kept by a drive: {error}"),
            }
        }
        let has_new = !keys.is_empty();
        if has_new {
            crash::reach(CrashPoint::BackupCommitted);
        }
        let found = keys.iter().filter_map(|key| self.parts.store.block(key));
        let blocks: Vec<_> = found.map(|(_, block)| block).collect();
        self.parts.figures.count(|figures| {
            blocks.iter().for_each(|block| figures.backed_up(block.bytes.into()));
        });
        self.announce(&blocks)?;
        if has_new {
            crash::reach(CrashPoint::BackupAnnounced);
        }
        Ok(())
    }

    /// AGENT-B3: withdrawn before they leave.
    fn keep_room(&mut self, now_ms: u64) -> Result<(), DriveError> {
        if now_ms < self.room_ms {
            return Ok(());
        }
        self.room_ms = now_ms + ROOM_MS;
        let Self { parts, announcer, known, .. } = self;
        let mut outcome = Ok(());
        let (left, errors) = parts.store.keep_room(&mut KeepRoom {
            watermarks: self.settings.watermarks,
            budgets: &Budgets::default(),
            may_leave: &mut |_| true,
            leaving: &mut |keys| {
                let withdrawn = announcer.withdraw(parts.cache, keys).map(drop);
                if outcome.is_ok() {
                    outcome = withdrawn;
                }
                keys.iter().for_each(|key| known.left_drive(*key));
            },
        });
        for error in errors {
            if !matches!(error, CommitError::Silent) {
                tracing::error!("a drive does not give room back: {error}");
            }
        }
        // Its commits may have failed.
        self.count_not_durable();
        let parts = &self.parts;
        let usages = || parts.store.volumes().map(|(_, volume)| volume.usage());
        let sum = |part: fn(&Usage) -> u64| usages().map(|usage| part(&usage)).sum();
        let (blocks, used, capacity) = (sum(|it| it.blocks), sum(Usage::in_use), sum(Usage::room));
        let encoded = EncodedBlocks {
            blocks: sum(|it| it.encoded.blocks),
            bytes: sum(|it| it.encoded.bytes),
            raw_bytes: sum(|it| it.encoded.raw_bytes),
        };
        let decoded = parts.store.decoded();
        let is_unread = !parts.store.is_whole();
        parts.figures.count(|figures| {
            figures.evicted += left as u64;
            (figures.blocks, figures.used_bytes, figures.capacity_bytes) = (blocks, used, capacity);
            (figures.encoded, figures.decoded) = (encoded, decoded);
            figures.is_unread = is_unread;
        });
        outcome
    }

    fn tell_figures(&mut self) {
        let (backlog, announced) = (self.backlog.bytes(), self.announcer.blocks());
        let is_ready = self.announcing.is_done && !self.clears.are_under_way();
        let refused = self.known.figures().refused;
        let encoder = self.writes.encoder_figures();
        let owing = self.clears.owing();
        self.parts.figures.count(|figures| {
            self.turns.count(figures);
            (figures.is_ready, figures.owing) = (is_ready, owing);
            figures.backlog_bytes = backlog;
            figures.announced = announced;
            figures.not_admitted = refused;
            figures.encoder = encoder;
        });
    }
}
