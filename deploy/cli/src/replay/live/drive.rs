//! The drive of a worker: a folder that blocks of the pool are backed up to and restored from.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use cxl_shm::clock::SystemClock;
use kv_cache::{BlockKey, KeySpace, NamespaceTag, Wanted};
use kv_drive::io::{Buffer, EngineKind};
use kv_drive::policy::{AdmissionKind, BackupOptions, Backups, Budgets, usual_watermarks};
use kv_drive::store::{Access, FolderOptions, KeepRoom, Store, StoreOptions};
use kv_drive::volume::{BlockSpec, checksum};
use kv_drive::{ALL_LAYERS, Encoding, Page};
use rackline::dma::{Checksum, DmaEngine as _, HostDma, LoadJob};
use rackline::{BlockHash, LocalCache, Model, Namespace, Session};

use super::protocol::DriveServed;
use crate::rack::block_bytes;

/// The drive that a worker uses.
#[derive(Args, Debug)]
pub(crate) struct DriveArguments {
    /// Its folder.
    #[arg(long)]
    drive: Option<PathBuf>,
    /// Bytes that the folder may have allocated.
    #[arg(long, default_value_t = 0)]
    drive_capacity: u64,
    /// Blocks that it has room for.
    #[arg(long, default_value_t = 0)]
    drive_blocks: usize,
    /// Blocks that become durable together.
    #[arg(long, default_value_t = 1)]
    group: usize,
    /// Which blocks are written.
    #[arg(long, default_value_t)]
    admission: AdmissionKind,
    /// How long they wait.
    #[arg(long, default_value_t = 0)]
    backup_age_ms: u64,
}

/// How long a read may take before the replay gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct WorkerDrive {
    store: Store,
    keys: KeySpace,
    tag: NamespaceTag,
    backups: Backups<u32>,
    group: usize,
    block_bytes: u32,
    /// What is known of a block that was seen: its number, and how many blocks are before it.
    blocks: HashMap<BlockKey, (u32, u16)>,
    clock: SystemClock,
    buffer: Option<Buffer>,
}

impl WorkerDrive {
    /// Opens the folder, if there is one.
    pub(super) fn open(
        arguments: &DriveArguments,
        model: &Model<'_>,
        namespace: Namespace,
        block_bytes: u64,
    ) -> Result<Option<Self>> {
        let Some(path) = arguments.drive.clone() else { return Ok(None) };
        let folder = FolderOptions { path, capacity_bytes: arguments.drive_capacity };
        // Nobody else opens this folder.
        let (engine, host) = (EngineKind::Uring, [0; 16]);
        let options = StoreOptions { engine, host, take_over: false, access: Access::Write };
        Ok(Some(Self {
            store: Store::open(&[folder], options)?,
            keys: KeySpace::new(model.fingerprint(), namespace, block_bytes),
            tag: namespace.tag(),
            backups: Backups::new(BackupOptions {
                admission: arguments.admission,
                backup_age_ms: arguments.backup_age_ms,
                waiting_max: usize::MAX,
                drive_blocks: arguments.drive_blocks,
            }),
            group: arguments.group,
            block_bytes: u32::try_from(block_bytes).context("a block is too long")?,
            blocks: HashMap::new(),
            clock: SystemClock::start(),
            buffer: None,
        }))
    }

    /// Writes what is due and in the pool.
    pub(super) fn back_up(
        &mut self,
        cache: &LocalCache<'_>,
        dma: &HostDma,
        session: &Session<'_>,
        now_ms: u64,
    ) -> Result<DriveServed> {
        let mut served = DriveServed::default();
        let start_ns = self.clock.now_ns();
        loop {
            let mut count = 0;
            while count < self.group
                && let Some(block) = self.backups.due(now_ms)
            {
                let hash = block_bytes::hash(block);
                if self.store.find(&self.keys.key(&hash)).is_none()
                    && self.write(cache, dma, session, &hash)?
                {
                    count += 1;
                } else {
                    served.gone_blocks += 1;
                }
            }
            if count == 0 {
                break;
            }
            let (keys, errors) = self.store.commit();
            ensure!(errors.is_empty() && keys.len() == count, "a commit failed: {errors:?}");
            served.written_blocks += count as u64;
            served.left_blocks += self.keep_room()?;
        }
        served.put_ns = self.clock.now_ns() - start_ns;
        served.written_bytes =
            served.written_blocks * u64::from(self.block_bytes.next_multiple_of(4096));
        served.refused_blocks = self.backups.figures().refused;
        let folders = self.store.volumes().map(|(_, volume)| volume.endurance().written_bytes);
        served.folder_written_bytes = folders.sum();
        Ok(served)
    }

    /// Copies a block from the pool to the drive, checked by two looks and its checksum. `false` when
    /// the pool has it no more.
    fn write(
        &mut self,
        cache: &LocalCache<'_>,
        dma: &HostDma,
        session: &Session<'_>,
        hash: &BlockHash,
    ) -> Result<bool> {
        let found = session.lookup(std::slice::from_ref(hash))?;
        let [matched] = found.blocks() else { return Ok(false) };
        let (key, bytes) = (self.keys.key(hash), u64::from(self.block_bytes));
        let wanted = Wanted { handle: matched.handle, key, bytes };
        let Some(Ok(ticket)) = cache.open(&[wanted]).pop() else {
            bail!("a block of the pool is not readable");
        };
        let mut buffer = self.take_buffer()?;
        let part = payload(&mut buffer, self.block_bytes)?;
        let mut jobs = [LoadJob { payload: ticket.payload(), parts: vec![&mut *part] }];
        let Some(Ok(Checksum(crc))) = dma.load(&mut jobs).pop() else {
            bail!("a block of the pool was not copied");
        };
        drop(jobs);
        ensure!(
            block_bytes::are_of(hash, part) && checksum(part) == crc,
            "a block has wrong bytes"
        );
        ensure!(
            cache.close_unused(&[(ticket, Some(crc))]) == [Ok(())],
            "a block changed although nobody else uses the pool"
        );
        let (_, depth) = self.blocks.get(&key).copied().context("a block that was never seen")?;
        let page = Page {
            fingerprint: 0,
            layout_version: 1,
            layer: ALL_LAYERS,
            first_token: depth.into(),
            last_token: depth.into(),
            encoding: Encoding::Raw,
            offset_bytes: 0,
            bytes: self.block_bytes,
            crc,
        };
        let spec = BlockSpec {
            key,
            tag: self.tag,
            depth,
            bytes: self.block_bytes,
            stored_bytes: self.block_bytes,
            crc,
            pages: &[page],
        };
        let (buffer, outcome) = self.store.put(&spec, buffer);
        self.buffer = buffer;
        outcome.context("the drive did not take a block; give it more room")?;
        Ok(true)
    }

    fn keep_room(&mut self) -> Result<u64> {
        let (blocks, backups) = (&self.blocks, &mut self.backups);
        let mut room = KeepRoom {
            watermarks: usual_watermarks(),
            budgets: &Budgets::default(),
            may_leave: &mut |_| true,
            leaving: &mut |keys| {
                let numbers = keys.iter().filter_map(|key| Some(blocks.get(key)?.0));
                numbers.for_each(|block| backups.left(block));
            },
        };
        let (left, errors) = self.store.keep_room(&mut room);
        ensure!(errors.is_empty(), "room was not made: {errors:?}");
        for (_, volume) in self.store.volumes() {
            if let Err(problem) = volume.check() {
                bail!("the accounts of the drive are wrong: {problem}");
            }
        }
        Ok(left as u64)
    }

    /// A request uses these blocks.
    pub(super) fn used(&mut self, blocks: &[u32], hashes: &[BlockHash]) {
        let keys: Vec<_> = hashes.iter().map(|hash| self.keys.key(hash)).collect();
        self.store.used(&keys);
        for (depth, (key, block)) in keys.into_iter().zip(blocks).enumerate() {
            self.blocks.insert(key, (*block, u16::try_from(depth).unwrap_or(u16::MAX)));
        }
    }

    /// Reads a block, if the drive has it.
    pub(super) fn get(
        &mut self,
        hash: &BlockHash,
        part: &mut [u8],
        served: &mut DriveServed,
    ) -> Result<bool> {
        let key = self.keys.key(hash);
        if self.store.find(&key).is_none() {
            return Ok(false);
        }
        let start_ns = self.clock.now_ns();
        let buffer = self.take_buffer()?;
        let (mut buffer, length) = self
            .store
            .get(key, buffer, TIMEOUT)
            .map_err(|(_, miss)| anyhow::Error::new(miss).context("a block was not read"))?;
        served.get_ns += self.clock.now_ns() - start_ns;
        ensure!(length == self.block_bytes, "a block has {length} bytes");
        part.copy_from_slice(payload(&mut buffer, length)?);
        self.buffer = Some(buffer);
        Ok(true)
    }

    /// A request was served: its blocks that are in the pool are candidates.
    pub(super) fn seen(
        &mut self,
        session: &Session<'_>,
        blocks: &[u32],
        hashes: &[BlockHash],
        now_ms: u64,
    ) -> Result<()> {
        let present = session.present(hashes)?;
        for ((block, hash), _) in blocks.iter().zip(hashes).zip(present).filter(|(_, is)| *is) {
            let is_on_drive = self.store.find(&self.keys.key(hash)).is_some();
            self.backups.seen(*block, is_on_drive, now_ms);
        }
        Ok(())
    }

    fn take_buffer(&mut self) -> Result<Buffer> {
        let zeroed = || Buffer::zeroed(self.block_bytes as usize);
        Ok(self.buffer.take().map_or_else(zeroed, Ok)?)
    }
}

/// The bytes of a buffer that are those of a block.
fn payload(buffer: &mut Buffer, bytes: u32) -> Result<&mut [u8]> {
    let all = buffer.bytes_mut().context("a buffer has no bytes")?;
    all.get_mut(..bytes as usize).context("a buffer is too short")
}
