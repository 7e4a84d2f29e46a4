//! Drives behind the pool (RACK-S7): restores that a prefill worker waits for, and backups.

use std::collections::BTreeMap;

use rackline_replay::{DriveModel, TierOptions, depths};

use super::events::Event;
use super::network::pass;
use super::{Run, Settings};
use crate::links::DriveLinks;
use crate::system::System;
use crate::workload::Workload;

/// Blocks that an agent reads from the pool at a time: reads of others wait for no more.
const BACKED_UP_TOGETHER: usize = 4;
const MS: u64 = 1_000_000;

/// The drives of a node, and its agent.
#[derive(Debug)]
struct Host {
    drive: DriveModel,
    /// Until when its drives are read, and written.
    read_ns: u64,
    write_ns: u64,
    /// Blocks that are due, and not yet written.
    due: Vec<u32>,
    writing: Vec<u32>,
    /// Whether the agent is to look for blocks that are due.
    is_awake: bool,
    is_dead: bool,
}

/// What the drives of a node are restoring for a request: blocks with their depths.
#[derive(Debug)]
struct Restore {
    node: u16,
    blocks: Vec<(u32, u32)>,
}

impl Restore {
    fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|(other, _)| *other == block)
    }
}

/// The drives of all nodes. None where the system has none.
#[derive(Debug, Default)]
pub(super) struct Drives {
    links: Option<DriveLinks>,
    age_ns: u64,
    hosts: Vec<Host>,
    /// When each block that is being restored is in the pool.
    restoring: BTreeMap<u32, u64>,
    /// By the number of the request.
    restores: BTreeMap<usize, Vec<Restore>>,
}

impl Drives {
    pub(super) fn new(settings: &Settings, workload: &Workload) -> Self {
        let Settings { system, links, drives, rack, .. } = settings;
        let Some(drives) = drives.filter(|_| *system == System::RacklineDrives) else {
            return Self::default();
        };
        let nodes = u64::from(rack.prefill_nodes());
        let options = TierOptions {
            room_bytes: drives.room_bytes.map(|bytes| (bytes / nodes).max(1)),
            ..drives
        };
        let prompts = workload.requests.iter().map(|request| request.blocks.as_slice());
        let depths = depths(workload.unique_blocks, prompts);
        let host = |_| Host {
            drive: DriveModel::new(depths.clone(), &options),
            read_ns: 0,
            write_ns: 0,
            due: Vec::new(),
            writing: Vec::new(),
            is_awake: false,
            is_dead: false,
        };
        Self {
            links: links.drives,
            age_ns: options.backup_age_ms.saturating_mul(MS),
            hosts: (0..nodes).map(host).collect(),
            ..Self::default()
        }
    }

    /// The node whose drives have a block.
    fn host_of(&self, block: u32) -> Option<usize> {
        self.hosts.iter().position(|host| !host.is_dead && host.drive.has(block))
    }

    /// A node has died: what it was restoring does not come.
    pub(super) fn node_died(&mut self, node: u16) {
        if let Some(host) = self.hosts.get_mut(usize::from(node)) {
            host.is_dead = true;
        }
        let restoring = &mut self.restoring;
        for restores in self.restores.values_mut() {
            for restore in restores.extract_if(.., |restore| restore.node == node) {
                restoring.retain(|block, _| !restore.has(*block));
            }
        }
    }

    /// Nothing is restored for a request any more.
    pub(super) fn give_up(&mut self, request: usize) {
        for restore in self.restores.remove(&request).unwrap_or_default() {
            self.restoring.retain(|block, _| !restore.has(*block));
        }
    }

    /// Blocks that were written to drives.
    pub(super) fn written_blocks(&self) -> u64 {
        self.hosts.iter().map(|host| host.drive.figures().written_blocks).sum()
    }
}

impl Run<'_> {
    /// Restores what drives have of a prompt behind its first `found` blocks. When that is done; `None`
    /// when there is nothing to wait for.
    pub(super) fn restore(&mut self, now_ns: u64, request: usize, found: usize) -> Option<u64> {
        let links = self.drives.links?;
        let prompt = &self.workload.requests[request].blocks;
        for host in &mut self.drives.hosts {
            host.drive.used(prompt);
        }
        let mut of_host: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
        let mut joined_ns = None;
        let place = self.place(self.prefill[request]);
        for (depth, block) in (0..).zip(prompt).skip(found) {
            if self.kept.has(place, *block) {
                continue;
            }
            if let Some(end_ns) = self.drives.restoring.get(block) {
                joined_ns = joined_ns.max(Some(*end_ns));
            } else if let Some(host) = self.drives.host_of(*block) {
                of_host.entry(host).or_default().push((*block, depth));
            } else {
                break;
            }
        }
        let mut all_ns = joined_ns;
        for (node, blocks) in of_host {
            let bytes = self.bytes_of(blocks.len());
            let number = u16::try_from(node).unwrap_or(u16::MAX);
            let read_ns = &mut self.drives.hosts[node].read_ns;
            let end_ns = pass(&links.read, read_ns, now_ns, bytes)
                .max(self.network.shared(now_ns, number, bytes));
            self.drives.restoring.extend(blocks.iter().map(|(block, _)| (*block, end_ns)));
            self.drives.restores.entry(request).or_default().push(Restore { node: number, blocks });
            all_ns = all_ns.max(Some(end_ns));
        }
        all_ns
    }

    /// What was restored is in the pool, as far as it has room, and is read with the rest.
    pub(super) fn restored(&mut self, now_ns: u64, worker: u16, request: usize) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).restore_ns = took_ns;
        let mut from_drives = Vec::new();
        let restores = self.drives.restores.remove(&request).unwrap_or_default();
        for Restore { node, blocks } in restores {
            self.kept.restore(node, &blocks);
            for (block, _) in blocks {
                self.drives.restoring.remove(&block);
                from_drives.push(block);
            }
        }
        let (place, prompt) = (self.place(worker), &self.workload.requests[request].blocks);
        let held = self.held[request].len();
        let behind = &prompt[held..];
        let found = &behind[..self.kept.look_up(place, behind)];
        self.hold(request, found);
        let came = found.iter().filter(|block| from_drives.contains(block)).count();
        self.served[request].from_drives += came as u64;
        self.read_found(now_ns, worker, request);
    }

    /// Blocks of a prompt are in the pool: the agents of their nodes back them up.
    pub(super) fn await_backup(&mut self, now_ns: u64, blocks: &[u32]) {
        if self.drives.hosts.is_empty() {
            return;
        }
        for block in blocks {
            let Some(node) = self.kept.owner(*block) else { continue };
            // What any drive has is not written again.
            if self.drives.host_of(*block).is_some() {
                continue;
            }
            let host = self.drives.hosts.get_mut(usize::from(node));
            let Some(host) = host.filter(|host| !host.is_dead) else { continue };
            host.drive.seen(*block, now_ns / MS);
            if !std::mem::replace(&mut host.is_awake, true) {
                self.events.at(now_ns + self.drives.age_ns, Event::BacksUp { node });
            }
        }
    }

    pub(super) fn backs_up(&mut self, now_ns: u64, node: u16) {
        let Some(links) = self.drives.links else { return };
        let host = &mut self.drives.hosts[usize::from(node)];
        let kept = &self.kept;
        if host.due.is_empty() {
            host.due = host.drive.due(now_ns / MS, |block| kept.owner(block) == Some(node));
        }
        if host.due.is_empty() {
            host.is_awake = host.drive.is_waiting();
            if host.is_awake {
                self.events.at(now_ns + self.drives.age_ns.max(MS), Event::BacksUp { node });
            }
            return;
        }
        let count = host.due.len().min(BACKED_UP_TOGETHER);
        host.writing = host.due.drain(..count).collect();
        let bytes = count as u64 * self.settings.block_bytes;
        let end_ns = pass(&links.write, &mut host.write_ns, now_ns, bytes)
            .max(self.network.shared(now_ns, node, bytes));
        self.events.at(end_ns, Event::BackedUp { node });
    }

    pub(super) fn backed_up(&mut self, now_ns: u64, node: u16) {
        let host = &mut self.drives.hosts[usize::from(node)];
        let written = std::mem::take(&mut host.writing);
        host.drive.write(&written);
        self.backs_up(now_ns, node);
    }
}
