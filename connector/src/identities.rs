//! What engines share, in words, in the pool itself.
//!
//! An engine registers the *identity* of its blocks: a text, published as a block like any other. So
//! it is found, checked and evicted like any other, and there is no second protocol. The oldest
//! unused one makes room when the pool is full; an engine publishes it again now and then. The
//! block has the length of the engine's own blocks, so that both lie in the same chunks.
//!
//! Every process that can read the region can read these texts. They have no names of tenants.

use std::path::Path;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{SuperblockError, read_superblock};
use cxl_shm::region::{OpenError as RegionError, Region};
use cxl_shm::units::{Extent, LineRange, NodeId};
use kv_cache::{
    BlockHash, Descriptor, GeometryError, KeySpace, Model, ModelFingerprint, Namespace,
    SlotContent, segment_of,
};
use sha2::{Digest, Sha256};

use crate::options::SessionOptions;

/// The longest identity in bytes.
pub const IDENTITY_BYTES_MAX: u64 = 4096;

/// The first bytes of the block hash of an identity, by which a scan finds it.
const MARK: [u8; 4] = *b"iden";

/// An identity that some engine registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredIdentity {
    /// The node that has it in its memory.
    pub node: NodeId,
    /// The words.
    pub text: String,
}

/// The session options under which an engine whose blocks have `block_bytes` bytes publishes its
/// identity.
#[must_use]
pub fn identity_options(block_bytes: u64) -> SessionOptions {
    SessionOptions::new(model(), block_bytes)
}

/// The hash of the block of an identity: the text, filled up with zeros.
#[must_use]
pub fn identity_hash(text: &str) -> BlockHash {
    let mut bytes: [u8; 32] = Sha256::digest(text).into();
    bytes[..4].copy_from_slice(&MARK);
    BlockHash::new(bytes)
}

/// Whether a descriptor may be that of an identity, as far as it says.
fn may_be_identity(block: &Descriptor) -> bool {
    let keys = KeySpace::new(model(), Namespace::default(), block.payload.bytes());
    block.is_readable() && keys.may_begin_with(block.key, MARK)
}

/// The text of an identity; `None` when the block is none, or is not any more: the text has to be
/// the one that the key stands for.
pub fn identity_in<F: Fabric>(fabric: &F, block: &Descriptor) -> Option<String> {
    if !may_be_identity(block) {
        return None;
    }
    let bytes = block.payload.bytes().min(IDENTITY_BYTES_MAX);
    let lines = LineRange::covering(Extent::new(block.payload.offset(), bytes)?);
    fabric.refresh(lines);
    let words = lines.iter().flat_map(|line| fabric.read_line(line));
    let content: Vec<u8> = words.flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8(content).ok()?;
    let keys = KeySpace::new(model(), Namespace::default(), block.payload.bytes());
    (keys.key(&identity_hash(&text)) == block.key).then_some(text)
}

/// Why the identities of a region cannot be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentitiesError {
    /// The region cannot be opened.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Its superblock cannot be read.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// It was not formatted for this version of the cache.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

/// The identities in the region at `path`, each as often as nodes have it. Reads all descriptors;
/// needs no membership, and changes nothing.
///
/// # Errors
/// [`IdentitiesError`].
pub fn registered_identities(
    path: impl AsRef<Path>,
) -> Result<Vec<RegisteredIdentity>, IdentitiesError> {
    let region = Region::open_read_only(path.as_ref())?;
    let fabric = region.fabric();
    let (superblock, layout) = read_superblock(fabric)?;
    let mut found = Vec::new();
    for node in layout.nodes() {
        segment_of(&superblock, &layout, node)?.scan(fabric, |_, content| {
            if let Ok(SlotContent::Block(block)) = content
                && let Some(text) = identity_in(fabric, &block)
            {
                found.push(RegisteredIdentity { node, text });
            }
        });
    }
    Ok(found)
}

fn model() -> ModelFingerprint {
    let model = Model {
        name: "rackline identity",
        revision: "1",
        dtype: "text",
        layout_version: 1,
        block_tokens: 1,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    model.fingerprint()
}
