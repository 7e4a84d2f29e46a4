//! Group commit (DRIVE-D1).

use std::io;

use kv_cache::BlockKey;

use super::batch::{Batch, Sealed, Sealing};
use super::journal::{InForce, Log, pages_for};
use super::segment::Phase;
use super::state::State;
use super::{Opened, Volume};
use crate::format::{
    BlockRecord, CarriedOut, FileName, MANIFEST, MANIFEST_NEW, Manifest, PageKind, RECORD_BYTES,
    RECORDS_A_PAGE, Record, Seal, seal_pages,
};
use crate::io::{Content, PAGE_BYTES};

/// Why nothing became durable. The blocks of the commit are misses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The metadata has no room left under the capacity.
    #[error("the metadata of the blocks has no room left; remove blocks, or give more capacity")]
    Full,
    /// The device has not ended what was given up: nothing is tried, and what waits for a commit waits
    /// on (DRIVE-D7).
    #[error("the device does not answer; what waits for it waits on")]
    Silent,
    /// The device failed.
    #[error("cannot {action}: {source}; the blocks of this commit are not kept")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// An error of the system during `action`.
fn during(action: &'static str) -> impl Fn(io::Error) -> CommitError {
    move |source| CommitError::System { action, source }
}

const SYNC_EXTENTS: &str = "make extents durable";

impl Volume {
    /// Makes all blocks durable that were written before, and all removals. Returns the keys of
    /// these blocks: they are found from now on, also after a crash.
    ///
    /// # Errors
    /// [`CommitError`]: none of the blocks is kept (DRIVE-D5).
    pub fn commit(&self) -> Result<Vec<BlockKey>, CommitError> {
        self.commit_untold()?;
        Ok(self.take_untold())
    }

    /// The keys of blocks that earlier commits made durable, and that no call has returned. Also after a
    /// commit that failed: its first steps, or commits of compaction, may have kept some.
    pub(crate) fn take_untold(&self) -> Vec<BlockKey> {
        std::mem::take(&mut self.log().untold)
    }

    /// As [`commit`](Self::commit), which returns the keys of these blocks the next time: compaction
    /// has nobody to tell them to.
    pub(crate) fn commit_untold(&self) -> Result<(), CommitError> {
        let mut log = self.log();
        loop {
            let mut state = self.state();
            if state.is_silent() {
                return Err(CommitError::Silent);
            }
            let blocks_max = self.blocks_of_a_commit(&state);
            if blocks_max == 0 && !state.written.is_empty() {
                state.metadata_is_full = true;
                state.close_open();
                state.forget_written(&[]);
                // What leaves gives room back.
                drop(state);
                return self.commit_part(&mut log, 0).and(Err(CommitError::Full));
            }
            drop(state);
            self.commit_part(&mut log, blocks_max)?;
            if self.state().written.is_empty() {
                return Ok(());
            }
        }
    }

    /// Blocks whose records have room in the metadata, beside those of the blocks that leave.
    fn blocks_of_a_commit(&self, state: &State) -> usize {
        let room = self.metadata_bytes_max().saturating_sub(state.metadata_bytes());
        // A block has a record in the journal and one in a table, and the journal may begin anew.
        let pages = usize::try_from(room / u64::from(PAGE_BYTES) / 2).unwrap_or(usize::MAX);
        let records = pages.saturating_mul(RECORDS_A_PAGE).saturating_sub(state.leaving.len());
        records / 2
    }

    /// Makes durable what waits, of blocks that are written at most `blocks_max`.
    fn commit_part(&self, log: &mut Log, blocks_max: usize) -> Result<(), CommitError> {
        let mut state = self.state();
        let mut batch = Batch::take(&mut state, blocks_max);
        let to_carry_out = state.to_carry_out.take();
        let unremoved = std::mem::take(&mut state.unremoved);
        let carried_out = to_carry_out.unwrap_or(state.in_force.carried_out);
        drop(state);
        if batch.is_empty() && to_carry_out.is_none() {
            self.remove_files(unremoved);
            return Ok(());
        }
        let replaced = log.journal;
        match self.make_durable(log, &mut batch, carried_out) {
            Ok(()) => {
                let moved = |written: &&super::state::Written| written.moved_from.is_none();
                let keys = batch.written.iter().filter(moved).map(|written| written.record.key);
                log.untold.extend(keys);
                let (mut gone, closed) = {
                    let mut state = self.state();
                    state.health.writes.succeeded();
                    state.in_force = InForce {
                        journal_pages: log.pages,
                        written_bytes: log.written_bytes,
                        counted_payload: log.counted_payload,
                        carried_out,
                    };
                    let files = batch.publish(&mut state);
                    state.metadata_is_full &= self.blocks_of_a_commit(&state) == 0;
                    files
                };
                closed.into_iter().for_each(|file| self.drive.close(file));
                gone.extend(unremoved);
                self.clean_up(log, replaced, gone);
                Ok(())
            }
            Err(error) => {
                if let Some(file) = log.file.take() {
                    self.drive.close(file);
                }
                let now_ms = self.now_ms();
                let mut state = self.state();
                let (mut sync_failed, mut is_full) = (false, false);
                if let CommitError::System { action, source } = &error {
                    state.health.write_failed(now_ms, source);
                    sync_failed = *action == SYNC_EXTENTS;
                    is_full = super::health::is_full(source);
                }
                state.unremoved.extend(unremoved);
                if state.to_carry_out.is_none() {
                    state.to_carry_out = to_carry_out;
                }
                batch.give_back(&mut state, sync_failed);
                if is_full {
                    // The removals that would give room back take some themselves. What the segment
                    // that is closed now has not used was never named: it goes at once.
                    state.device_pages = Some(state.allocated_pages());
                    drop(state);
                    self.punch_garbage();
                }
                Err(error)
            }
        }
    }

    fn make_durable(
        &self,
        log: &mut Log,
        batch: &mut Batch,
        carried_out: CarriedOut,
    ) -> Result<(), CommitError> {
        // A number is used once, whatever becomes of this commit (DRIVE-D2).
        log.generation += 1;
        for data in &batch.data {
            self.drive.sync(*data).map_err(during(SYNC_EXTENTS))?;
        }
        for sealing in std::mem::take(&mut batch.sealing) {
            if let Some(sealed) = self.seal(log, batch, sealing)? {
                batch.sealed.push(sealed);
            }
        }
        let appended = self.append(log, batch).map_err(during("write the journal"))?;
        let is_new_journal = log.file != Some(appended.file);
        if is_new_journal || !batch.sealed.is_empty() || !batch.announced.is_empty() {
            self.drive.sync_folder().map_err(during("make the names of files durable"))?;
        }
        log.written_bytes += appended.bytes + 2 * u64::from(PAGE_BYTES);
        let payload = self.state().payload_bytes;
        log.written_bytes += payload - std::mem::replace(&mut log.counted_payload, payload);
        let next_segment = self.state().next_segment;
        let manifest = Manifest {
            folder: self.folder,
            store: self.store,
            host: self.options.host,
            generation: log.generation,
            segment_bytes: self.segment_bytes,
            journal: appended.journal,
            journal_pages: appended.pages,
            next_segment,
            written_bytes: log.written_bytes,
            open_ms: self.open_ms(),
            carried_out,
        };
        if let Err(source) = replace_manifest(&*self.drive, &manifest) {
            if is_new_journal {
                self.drive.close(appended.file);
            }
            return Err(during("replace the manifest")(source));
        }
        if is_new_journal && let Some(file) = log.file.replace(appended.file) {
            self.drive.close(file);
        }
        (log.journal, log.pages) = (appended.journal, appended.pages);
        log.first_pages = appended.first_pages;
        Ok(())
    }

    /// Writes the table of a segment. `None` when the table that it replaces cannot be read whole.
    fn seal(
        &self,
        log: &mut Log,
        batch: &Batch,
        sealing: Sealing,
    ) -> Result<Option<Sealed>, CommitError> {
        let Sealing { slot, id, version, blocks, replaces } = sealing;
        let blocks = match (blocks, replaces) {
            (Some(blocks), _) => blocks,
            (None, Some((before, pages))) => {
                let Ok((blocks, 0)) = self.read_table(id, before, pages) else { return Ok(None) };
                self.still_there(slot, batch, blocks)
            }
            (None, None) => return Ok(None),
        };
        let failed = during("write the table of a segment");
        let seal = Seal { kind: PageKind::Table, folder: self.folder, file: id.into(), page: 0 };
        let records = blocks.iter().map(|block| Record::Block(*block).to_bytes());
        let bytes = seal_pages(seal, version.into(), RECORD_BYTES, records);
        let name = FileName::Table(id, version);
        log.leftovers.push(name);
        let file = self.drive.create(&name.to_string(), Content::Records, 0).map_err(&failed)?;
        let file = Opened { drive: &*self.drive, file };
        self.drive.write(file.file, 0, &bytes).map_err(&failed)?;
        self.drive.sync(file.file).map_err(&failed)?;
        log.written_bytes += bytes.len() as u64;
        let records = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        Ok(Some(Sealed { slot, id, version, table_pages: pages_for(blocks.len()), records }))
    }

    /// The blocks of a table that are in the index at the place that it says.
    fn still_there(
        &self,
        slot: u32,
        batch: &Batch,
        mut blocks: Vec<BlockRecord>,
    ) -> Vec<BlockRecord> {
        let mut state = self.state();
        let removed = state.segment(slot).map(|it| it.removed.clone()).unwrap_or_default();
        drop(state);
        let gone = batch.gone_from(slot, &removed);
        blocks.retain(|block| !gone.contains(&block.first_page));
        blocks
    }

    /// Removes files and gives memory back, now that no manifest names them (DRIVE-D3).
    fn clean_up(&self, log: &mut Log, replaced: u64, mut gone: Vec<(FileName, u32)>) {
        let is_in_force = {
            let state = self.state();
            let tables: Vec<_> = state
                .all()
                .filter_map(|(_, segment)| match segment.phase {
                    Phase::Sealed { version, .. } => Some(FileName::Table(segment.id, version)),
                    Phase::Open | Phase::Closed => None,
                })
                .collect();
            let journal = FileName::Journal(log.journal);
            move |name: &FileName| *name == journal || tables.contains(name)
        };
        gone.extend(log.leftovers.drain(..).map(|name| (name, 0)));
        // Also after a failed commit, which has closed it.
        gone.push((FileName::Journal(replaced), 0));
        gone.retain(|(name, _)| !is_in_force(name));
        gone.sort_unstable();
        gone.dedup_by_key(|(name, _)| *name);
        self.remove_files(gone);
        self.punch_garbage();
    }
}

/// Makes `manifest` the root of the folder.
pub(super) fn replace_manifest(
    drive: &dyn crate::io::Drive,
    manifest: &Manifest,
) -> io::Result<()> {
    let file = drive.create(MANIFEST_NEW, Content::Records, 0)?;
    let file = Opened { drive, file };
    drive.write(file.file, 0, &manifest.to_bytes())?;
    drive.sync(file.file)?;
    drive.rename(MANIFEST_NEW, MANIFEST)?;
    drive.sync_folder()
}
