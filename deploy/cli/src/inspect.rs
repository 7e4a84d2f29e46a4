//! `rackline inspect`: what lies in the lines of a region, with the names of the fields.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use cxl_shm::fabric::{Fabric, LineWords};
use cxl_shm::layout::{
    CHUNK_LOCK, FIRST_FREE_LOCK, INTENT_LINES, INTENTS, LOCK_TABLE_LOCK, Layout, LineField,
    LineKind, LinePlace, PROFILE_LOCK, ROOT_LOCK, Superblock, SuperblockError, read_superblock,
};
use cxl_shm::region::Region;
use cxl_shm::units::{LINE_BYTES, LineOffset, LineRange, LockId, NodeId};
use kv_cache::{Descriptor, SlotContent, area_line, holders_of, segment_of};

use crate::output::say;

/// Show what lies in a region: a block, a lock, a chunk, a node, or any line.
///
/// The command only reads, and needs no permission to write. The region may be in use: then each line is
/// as it was at one moment, and two lines may be of different moments.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// The descriptors of a block, and the nodes that hold it.
    Block {
        /// The first digits of the key, in hexadecimal: `rackline top` and the page show 16.
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// What each node says of a lock: request, acknowledgement, grant, redo record.
    Lock {
        /// Number of the lock.
        number: u32,
    },
    /// The entry of a chunk, and the blocks in it.
    Chunk {
        /// Number of the chunk.
        number: u32,
    },
    /// The lines of a node.
    Node {
        /// Number of the node.
        number: u16,
    },
    /// One line, and what it is.
    Line {
        /// From the start of the region, in bytes; 0x for hexadecimal digits.
        #[arg(value_parser = offset)]
        offset: u64,
    },
}

/// An offset as `rackline fsck` prints it.
fn offset(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}; give bytes from the start, as 4096 or 0x1000"))
}

struct View<'r> {
    region: &'r Region,
    superblock: Superblock,
    layout: Layout,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let region = Region::open_read_only(&options.region)?;
    let (superblock, layout) =
        read_superblock(region.fabric()).with_context(|| region.path().display().to_string())?;
    let view = View { region: &region, superblock, layout };
    match &options.what {
        What::Block { key } => view.block(key)?,
        What::Lock { number } => view.lock(*number)?,
        What::Chunk { number } => view.chunk(*number)?,
        What::Node { number } => view.node(*number)?,
        What::Line { offset } => view.line_at(*offset)?,
    }
    if region.fabric().is_cut_off() {
        // What was read after that means nothing.
        bail!("{}: {}", region.path().display(), SuperblockError::MemoryFailed);
    }
    Ok(())
}

impl View<'_> {
    fn words(&self, at: LineOffset) -> LineWords {
        self.region.fabric().refresh(LineRange::one(at));
        self.region.fabric().read_line(at)
    }

    fn line_at(&self, offset: u64) -> Result<()> {
        let bytes = self.region.bytes();
        if offset >= bytes {
            bail!(
                "offset {offset:#x} is behind the end: the region has {bytes} bytes ({bytes:#x})"
            );
        }
        let at = LineOffset::new(offset - offset % LINE_BYTES).context("no line")?;
        self.line(at)
    }

    /// Prints a line: what it is, its bytes and its fields.
    fn line(&self, at: LineOffset) -> Result<()> {
        let words = self.words(at);
        let LinePlace { kind, node, index } = self.layout.line_place(at);
        let (mut what, mut fields) = (kind.in_words().to_owned(), kind.fields());
        let mut fault = match kind.check(at, &words) {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        if let (LineKind::Area, Some(node)) = (kind, node) {
            if index < self.layout.area(node).lines() {
                let fabric = self.region.fabric();
                let line = area_line(fabric, &self.superblock, &self.layout, node, index)?;
                (what, fields, fault) = (line.what, line.fields, line.fault);
            }
            let _ = write!(what, ", area of node {node}");
        } else {
            if let Some(node) = node {
                let _ = write!(what, ", node {node}");
            }
            let _ = write!(what, ", number {index}");
        }
        say!("{:#x}: {what}", at.bytes());
        let hex = |words: &[u64]| {
            let bytes = words.iter().map(|word| word.to_le_bytes().map(|it| format!("{it:02x}")));
            bytes.map(|eight| eight.concat()).collect::<Vec<_>>().join(" ")
        };
        say!("  {}", hex(&words[..4]));
        say!("  {}", hex(&words[4..]));
        fields.iter().for_each(|field| print_field(field, &words));
        if let Some(fault) = fault {
            say!("  does not read: {fault}");
        }
        Ok(())
    }

    fn node(&self, number: u16) -> Result<()> {
        let nodes = self.layout.geometry().nodes;
        let node = self.layout.node(number).with_context(|| {
            format!("node {number} does not exist: this region has nodes 0 to {}", nodes - 1)
        })?;
        let layout = &self.layout;
        let words = [
            layout.heartbeat(node),
            layout.manager_claim(node),
            layout.manager_heartbeat(node),
            layout.summary(node),
            layout.arrival(node),
            layout.chunk_demand(node),
            layout.claim_word(node),
            layout.reclaimer(node),
        ];
        self.line(layout.node_line(node).at())?;
        self.line(layout.host_name(node).at())?;
        for word in words {
            self.line(word.range().start())?;
        }
        for lock in 0..INTENTS {
            let head =
                layout.intents(node).part(lock * INTENT_LINES, 1).context("no such record")?;
            let at = head.range().start();
            if self.words(at).iter().any(|word| *word != 0) {
                self.line(at)?;
            }
        }
        self.line(layout.area(node).range().start())
    }

    fn chunk(&self, number: u32) -> Result<()> {
        let chunks = self.layout.chunks();
        let chunk = self.layout.chunk_id(number).with_context(|| {
            format!("chunk {number} does not exist: this region has chunks 0 to {}", chunks - 1)
        })?;
        self.line(self.layout.chunk_entry(chunk).at())?;
        let extent = self.layout.chunk(chunk);
        say!("bytes {:#x} to {:#x}", extent.offset(), extent.end());
        let mut blocks = 0;
        self.blocks(|block| {
            if self.layout.chunk_of(block.payload) == Some(chunk) {
                blocks += 1;
                say!(
                    "block {} of node {}: descriptor {}, {} bytes at {:#x}, {:?}",
                    digits(block),
                    block.handle.owner(),
                    block.handle.slot(),
                    block.payload.bytes(),
                    block.payload.offset(),
                    block.state
                );
            }
        })?;
        say!("{blocks} blocks");
        Ok(())
    }

    fn block(&self, key: &str) -> Result<()> {
        let wanted = key.to_ascii_lowercase();
        if wanted.is_empty() || !wanted.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            bail!("KEY {key}: give hexadecimal digits, as `rackline top` shows them");
        }
        let mut found = Vec::new();
        self.blocks(|block| {
            if digits(block).starts_with(&wanted) {
                found.push(*block);
            }
        })?;
        if found.is_empty() {
            bail!("no block in the region has a key that begins with {wanted}");
        }
        let fabric = self.region.fabric();
        for block in found {
            let (owner, slot) = (block.handle.owner(), block.handle.slot());
            say!("block {} of node {owner}, descriptor {slot}", digits(&block));
            self.line(self.descriptor_line(owner, slot)?)?;
            let holders = holders_of(fabric, &self.superblock, &self.layout, owner, slot)?;
            let nodes: Vec<_> = holders.iter().map(ToString::to_string).collect();
            match nodes.is_empty() {
                true => say!("  held by no node"),
                false => say!("  held by nodes {}", nodes.join(", ")),
            }
        }
        Ok(())
    }

    /// Where the line of a descriptor is.
    fn descriptor_line(&self, owner: NodeId, slot: u32) -> Result<LineOffset> {
        let segment = segment_of(&self.superblock, &self.layout, owner)?;
        Ok(segment.line_of(slot).start())
    }

    /// Tells `visit` each block, freshly read. Descriptors that do not read are passed over: `rackline
    /// fsck` finds them.
    fn blocks(&self, mut visit: impl FnMut(&Descriptor)) -> Result<()> {
        for node in self.layout.nodes() {
            let segment = segment_of(&self.superblock, &self.layout, node)?;
            segment.scan(self.region.fabric(), |_, content| {
                if let Ok(SlotContent::Block(block)) = content {
                    visit(&block);
                }
            });
        }
        Ok(())
    }

    fn lock(&self, number: u32) -> Result<()> {
        let (lock, locks) = (LockId(number), self.layout.locks());
        if number >= locks {
            bail!("lock {number} does not exist: this region has locks 0 to {}", locks - 1);
        }
        let guards = match lock {
            ROOT_LOCK => "named roots",
            CHUNK_LOCK => "the chunk table",
            LOCK_TABLE_LOCK => "the table of locks",
            PROFILE_LOCK => "the platform profile",
            _ if number < FIRST_FREE_LOCK => "nothing of the region's own",
            _ => "what programs use it for",
        };
        say!("lock {number} guards {guards}; locks are {}", self.superblock.lock_protocol);
        say!("node  {:>18}  {:>18}  grants of lock managers", "request", "acknowledgement");
        let fabric = self.region.fabric();
        for node in self.layout.nodes() {
            let request = self.layout.request(node, lock).fresh(fabric);
            let ack = self.layout.acks(node).word(number.into()).map_or(0, |it| it.fresh(fabric));
            let mut grants = String::new();
            for manager in self.layout.nodes() {
                let index = self.layout.grant_index(node, lock);
                let grant =
                    self.layout.grants(manager).word(index).map_or(0, |it| it.fresh(fabric));
                if grant != 0 {
                    let _ = write!(grants, "{grant:#018x} of node {manager}  ");
                }
            }
            if request != 0 || ack != 0 || !grants.is_empty() {
                say!("{:>4}  {request:#018x}  {ack:#018x}  {}", node.0, grants.trim_end());
            }
        }
        for node in self.layout.nodes().filter(|_| u64::from(number) < INTENTS) {
            let at = u64::from(number) * INTENT_LINES;
            let head = self.layout.intents(node).part(at, 1).context("no such record")?;
            if self.words(head.range().start()).iter().any(|word| *word != 0) {
                self.line(head.range().start())?;
            }
        }
        Ok(())
    }
}

/// A key in hexadecimal digits.
fn digits(block: &Descriptor) -> String {
    block.key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn print_field(field: &LineField, words: &LineWords) {
    let bytes = field.bytes_in(words);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_text = !text.is_empty() && text.iter().all(|byte| byte.is_ascii_graphic());
    match field.value_in(words) {
        Some(value) => {
            let width = usize::from(field.bytes) * 2 + 2;
            say!("  {:<22} {value:#0width$x} ({value})", field.name);
        }
        None if field.name == "name" && is_text => {
            say!("  {:<22} {}", field.name, String::from_utf8_lossy(text));
        }
        None => say!("  {:<22} {hex}", field.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_decimal_or_hexadecimal() {
        assert_eq!((offset("4096"), offset("0x1000")), (Ok(4096), Ok(4096)));
        assert!(offset("1000h").unwrap_err().contains("0x1000"));
    }
}
