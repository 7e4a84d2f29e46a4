//! The roll call: what must be whenever no drive fails and the agents live.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kv_cache::RestoreOutcome;
use kv_cache::tier::Found;
use rackline::{NodeId, RestoreOptions, RestoreStop};

use super::event::Order;
use super::ground::session_options;
use super::ground::{A, B, BLOCK_BYTES, HOSTS, content, folder_bytes, folders, hash};
use super::rack::Rack;

/// Acknowledged blocks that a roll call restores and compares.
const SAMPLE: usize = 32;
/// How long the parent waits for a block of the sample at once.
const WAIT_MS: u64 = 2_000;

impl Rack {
    /// Calls the roll: everything acknowledged is found, from each host; some of it comes back whole;
    /// no drive has more than its room. Engines go on meanwhile.
    pub(super) fn call_roll(&mut self) -> Result<()> {
        self.mend_all()?;
        let turn = usize::try_from(self.figures.rolls)?;
        let sample = self.shadow.sample(SAMPLE, turn);
        self.find_acknowledged()?;
        self.bring_back(&sample)?;
        self.check_agents()?;
        self.figures.rolls += 1;
        Ok(())
    }

    /// No drive fails any more, and both agents have announced what they have.
    pub(super) fn mend_all(&mut self) -> Result<()> {
        for host in 0..HOSTS {
            self.start(Self::agent_of(host), None)?;
            self.order(Self::agent_of(host), Order::Mend)?;
        }
        self.wait_until("both agents are ready", |rack| {
            Ok((0..HOSTS).all(|host| rack.players[Self::agent_of(host)].is_ready()))
        })
    }

    /// Every acknowledged block is in the pool, or on a drive of A.
    fn find_acknowledged(&mut self) -> Result<()> {
        let mut missing: Vec<_> = self.shadow.numbers().collect();
        let count = missing.len();
        for host in 0..HOSTS {
            let outcome = self.wait_until("all acknowledged blocks are found", |rack| {
                missing.retain(|number| match rack.bed.find(host, *number) {
                    Some(Found::InPool(_)) => false,
                    // Of its own host before another: B may have it too.
                    Some(Found::OnDrive { node, .. }) => host == A && node != NodeId(A),
                    None => true,
                });
                Ok(missing.is_empty())
            });
            if let Err(error) = outcome {
                bail!(
                    "of {count} blocks that drives of host {A} acknowledged, host {host} does not find \
                     {}, for one {:?}: {error:#}",
                    missing.len(),
                    missing.first()
                );
            }
            missing = self.shadow.numbers().collect();
        }
        Ok(())
    }

    /// Restores these blocks from A, and compares them.
    pub(super) fn bring_back(&mut self, numbers: &[u32]) -> Result<()> {
        for number in numbers {
            let (number, mut last) = (*number, None);
            let outcome = self.wait_until("a block comes back", |rack| {
                last = rack.restore(number)?;
                Ok(last.is_none())
            });
            if let Err(error) = outcome {
                bail!("block {number} was acknowledged, and is a miss ({last:?}): {error:#}");
            }
            self.figures.verified += 1;
        }
        Ok(())
    }

    /// Restores an acknowledged block, if need be, and compares it. Why it is a miss, otherwise.
    fn restore(&self, number: u32) -> Result<Option<String>> {
        let session = self.bed.on(A).session(session_options())?;
        let wait = RestoreOptions::new(Duration::from_millis(WAIT_MS));
        let report = session.lookup_and_restore(&[hash(number)], wait)?;
        let stop = report.stop();
        if stop == Some(RestoreStop::Refused(RestoreOutcome::Damaged)) {
            bail!("block {number} was acknowledged, and is damaged");
        }
        let held = report.into_held();
        let mut bytes = vec![0; BLOCK_BYTES];
        let blocks = held.blocks();
        let read = match blocks.len() {
            0 => 0,
            _ => session.fetch(&blocks, vec![vec![bytes.as_mut_slice()]])?.valid_blocks(),
        };
        session.release(held);
        if read == 0 {
            return Ok(Some(stop.map_or_else(|| "not found".to_owned(), |it| it.to_string())));
        }
        ensure!(bytes == content(number), "block {number} came back with wrong bytes");
        Ok(None)
    }

    /// What agents say and folders take.
    fn check_agents(&self) -> Result<()> {
        if let Some(seen) = self.bed.agent(A)? {
            let damaged = RestoreOutcome::ALL.iter().position(|it| *it == RestoreOutcome::Damaged);
            let damaged = damaged.map_or(0, |at| seen.line.outcomes[at]);
            ensure!(damaged == 0, "an honest drive has damaged {damaged} blocks");
            ensure!(seen.line.removed_blocks == 0, "blocks made room where there is enough");
        }
        for host in [A, B] {
            for folder in folders(self.folders.path(), host) {
                let mut bytes = 0;
                for entry in std::fs::read_dir(&folder)? {
                    // A file may go while it is looked at.
                    bytes += entry?.metadata().map_or(0, |it| it.blocks() * 512);
                }
                let room = folder_bytes(host);
                ensure!(bytes <= room, "{} takes {bytes} of {room} bytes", folder.display());
            }
        }
        Ok(())
    }
}
