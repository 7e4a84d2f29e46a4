//! Identity of blocks: who may read what.
//!
//! Two models, two layouts of the KV or two tenants must never read each other's blocks, so all
//! of that goes into the key under which a block is found ([`KeySpace`] says how, and what a tenant
//! that chooses its own prompts can do).

use std::fmt;

use bytemuck::{Pod, Zeroable};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// The engine's hash of a block and of all blocks before it: same prefix, same hash. Opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// A hash as the engine gave it.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hashes in `bytes`, one behind the other. `None` when the last is not complete.
    #[must_use]
    pub fn all_in(bytes: &[u8]) -> Option<&[Self]> {
        bytemuck::try_cast_slice(bytes).ok()
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Everything that decides what the bytes of a block mean. Two engines may share blocks when all
/// of it is equal.
///
/// [`KvGeometry::model`](crate::KvGeometry::model) makes one from checked numbers. An engine whose
/// type of elements has no name there fills in the fields.
///
/// # Example
/// ```
/// use kv_cache::Model;
///
/// let model = Model {
///     name: "SmolLM2-135M-Instruct",
///     revision: "b179c952",
///     dtype: "f16",
///     layout_version: 1,
///     block_tokens: 16,
///     tensor_parallel_rank: 0,
///     tensor_parallel_size: 1,
///     layers: 30,
///     kv_heads: 3,
///     head_dim: 64,
/// };
/// let other = Model { dtype: "bf16", ..model };
/// assert_ne!(model.fingerprint(), other.fingerprint());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// Revision of its weights.
    pub revision: &'a str,
    /// Type of the elements, as the engine calls it.
    pub dtype: &'a str,
    /// Version of the order of the bytes in a block, which the engine's connector defines.
    pub layout_version: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Which part of the heads this engine holds.
    pub tensor_parallel_rank: u32,
    /// In how many parts the heads are divided.
    pub tensor_parallel_size: u32,
    /// Layers with KV.
    pub layers: u32,
    /// KV heads of a layer, over all parts.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl Model<'_> {
    /// The first 8 bytes, little-endian, of SHA-256 over: the text `rackline model 1`; name,
    /// revision and dtype, each after its length in bytes as 8 bytes; the numbers in the order of
    /// the fields, as 4 bytes each. All numbers are little-endian.
    #[must_use]
    pub fn fingerprint(&self) -> ModelFingerprint {
        let mut hasher = Sha256::new();
        hasher.update(b"rackline model 1");
        for text in [self.name, self.revision, self.dtype] {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let numbers = [
            self.layout_version,
            self.block_tokens,
            self.tensor_parallel_rank,
            self.tensor_parallel_size,
            self.layers,
            self.kv_heads,
            self.head_dim,
        ];
        for number in numbers {
            hasher.update(number.to_le_bytes());
        }
        let [first, ..] = words(&hasher.finalize().into());
        ModelFingerprint(first)
    }
}

impl From<Model<'_>> for ModelFingerprint {
    fn from(model: Model<'_>) -> Self {
        model.fingerprint()
    }
}

/// Stands for a [`Model`]. Goes into every key, twice ([`KeySpace`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelFingerprint(pub(crate) u64);

impl ModelFingerprint {
    /// The number, to be shown or logged.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Who shares blocks: a tenant and its cache salt. The default is the namespace without a name, that
/// of an empty tenant and an empty salt: the same in Rust, C and Python.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace([u8; 16]);

impl Default for Namespace {
    fn default() -> Self {
        Self::new("", b"")
    }
}

impl Namespace {
    /// The namespace of `tenant` with `salt`: the first 16 bytes of SHA-256 over the text
    /// `rackline namespace 1`, the length of the tenant's name in bytes as 8 bytes little-endian,
    /// the name, the salt.
    #[must_use]
    pub fn new(tenant: &str, salt: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"rackline namespace 1");
        hasher.update((tenant.len() as u64).to_le_bytes());
        hasher.update(tenant.as_bytes());
        hasher.update(salt);
        Self(half(&hasher.finalize().into()))
    }

    /// Its 16 bytes, as a directive carries them.
    pub(crate) fn words(self) -> [u64; 2] {
        IndexKey(self.0).words()
    }

    /// The namespace of these words.
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        Self(IndexKey::from_words(words).0)
    }

    /// What descriptors say of it.
    #[must_use]
    pub fn tag(&self) -> NamespaceTag {
        NamespaceTag(u16::from_le_bytes([self.0[0], self.0[1]]))
    }
}

/// Sixteen bits of a namespace, by which a node accounts for the blocks it keeps for each. Two
/// namespaces with one tag share a quota, and are cleared together; never blocks, which only keys decide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NamespaceTag(pub(crate) u16);

impl NamespaceTag {
    /// Its bits, to be kept on a drive.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The tag with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// What a block is known by: 192 bits, equal only for the same block hash, model, namespace and
/// length. The first 128 bits find the block: logs and replicas have these alone. The last 64 are
/// the *witness*, which a reader compares before it accepts a block ([`KeySpace`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct BlockKey {
    index: IndexKey,
    witness: [u8; 8],
}

impl BlockKey {
    pub(crate) const fn new(index: IndexKey, witness: u64) -> Self {
        Self { index, witness: witness.to_le_bytes() }
    }

    /// Its 24 bytes, to be sent to another process.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 24] {
        bytemuck::cast_ref(self)
    }

    /// The part by which the block is found.
    #[must_use]
    pub const fn index(self) -> IndexKey {
        self.index
    }

    pub(crate) const fn witness(self) -> u64 {
        u64::from_le_bytes(self.witness)
    }

    /// The words of the [`index`](Self::index).
    pub(crate) fn words(self) -> [u64; 2] {
        self.index.words()
    }
}

/// The part of a key by which a block is found: uniform.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct IndexKey([u8; 16]);

impl IndexKey {
    pub(crate) fn words(self) -> [u64; 2] {
        [0, 8].map(|at| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(eight)
        })
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        Self(bytes)
    }
}

/// Makes the keys of one model, namespace and length of block.
///
/// A key is 16 bytes by which a block is found, and 8 bytes of *witness*. The 16 bytes are the
/// XXH3-128, little-endian, of 48 bytes: a *salt* of 16, then the block hash. The salt is the first
/// half of the SHA-256 of the text `rackline block key 4` padded with zeros to 32 bytes, the
/// fingerprint (8 bytes, little-endian), the namespace (16) and the length of a block in bytes (8,
/// little-endian). The witness is the fingerprint, with its last 4 bytes xor the first 4 bytes of
/// the block hash. A reader that was handed a key does not know the hash: the first 4 bytes of the
/// witness tell it whether the block is of its own model ([`own`](Self::own)).
///
/// A lookup makes a key for every block of a prompt, and SHA-256 for each would take most of its
/// time. XXH3 is no cryptographic hash, and the salt is no secret: model, tenant and salt are
/// configuration. A tenant can compute keys offline. The width of a key protects the others, where
/// block hashes are SHA-256:
///
/// - XXH3-128 of 48 bytes has 126 bits, and the witness has 32 of the hash: 158 bits in a model.
/// - Another tenant's block: a prompt with the key of a given block takes 2^158 hashes.
/// - A pair of prompts with one key, of which the tenant publishes one: 2^79 hashes.
/// - By accident: two of 2^30 blocks have one key with a probability of 2^-99.
///
/// An engine whose block hashes can be aimed at (any but SHA-256) lets its tenants do so with or
/// without a pool.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySpace {
    fingerprint: ModelFingerprint,
    salt: [u8; 16],
}

impl KeySpace {
    /// Keys for blocks of `fingerprint` in `namespace`, of `block_bytes` bytes each.
    #[must_use]
    pub fn new(fingerprint: ModelFingerprint, namespace: Namespace, block_bytes: u64) -> Self {
        const DOMAIN: &[u8] = b"rackline block key 4";
        let mut bytes = [0; 64];
        bytes[..DOMAIN.len()].copy_from_slice(DOMAIN);
        bytes[32..40].copy_from_slice(&fingerprint.0.to_le_bytes());
        bytes[40..56].copy_from_slice(&namespace.0);
        bytes[56..].copy_from_slice(&block_bytes.to_le_bytes());
        Self { fingerprint, salt: half(&Sha256::digest(bytes).into()) }
    }

    /// What tells these keys from those of every other space, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.fingerprint.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.salt);
        bytes
    }

    /// The space that another process has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 24]) -> Self {
        let (mut fingerprint, mut salt) = ([0; 8], [0; 16]);
        fingerprint.copy_from_slice(&bytes[..8]);
        salt.copy_from_slice(&bytes[8..]);
        Self { fingerprint: ModelFingerprint(u64::from_le_bytes(fingerprint)), salt }
    }

    /// Whether `key` may be one of this model, of a block hash that begins with these four bytes. Of
    /// other keys of the model one in 2^32 may be, too.
    #[must_use]
    pub fn may_begin_with(&self, key: BlockKey, hash_begin: [u8; 4]) -> bool {
        key.witness() == self.witness(hash_begin)
    }

    /// The model that the keys are for.
    #[must_use]
    pub fn fingerprint(&self) -> ModelFingerprint {
        self.fingerprint
    }

    /// The key of a block.
    #[must_use]
    pub fn key(&self, hash: &BlockHash) -> BlockKey {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&self.salt);
        bytes[16..].copy_from_slice(&hash.0);
        let mut begin = [0; 4];
        begin.copy_from_slice(&hash.0[..4]);
        BlockKey::new(IndexKey(xxh3_128(&bytes).to_le_bytes()), self.witness(begin))
    }

    fn witness(&self, hash_begin: [u8; 4]) -> u64 {
        self.fingerprint.0 ^ u64::from(u32::from_le_bytes(hash_begin)) << 32
    }

    /// The key that a descriptor must have so that a reader of this model may accept it for `key`:
    /// the same, with this model in its witness. No descriptor has it when `key` is of another
    /// model. For keys that come from elsewhere, as in a handle.
    #[must_use]
    pub fn own(&self, key: BlockKey) -> BlockKey {
        const MODEL: u64 = 0xffff_ffff;
        BlockKey::new(key.index(), key.witness() & !MODEL | self.fingerprint.0 & MODEL)
    }
}

fn half(digest: &[u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

fn words(digest: &[u8; 32]) -> [u64; 2] {
    IndexKey(half(digest)).words()
}

fn hex(f: &mut fmt::Formatter<'_>, name: &str, bytes: &[u8]) -> fmt::Result {
    write!(f, "{name}(")?;
    for byte in bytes {
        write!(f, "{byte:02x}")?;
    }
    write!(f, ")")
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, "BlockHash", &self.0)
    }
}
impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, "BlockKey", self.as_bytes())
    }
}
impl fmt::Debug for IndexKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, "IndexKey", &self.0)
    }
}
impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, "Namespace", &self.0)
    }
}
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Debug for ModelFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelFingerprint({:016x})", self.0)
    }
}
impl fmt::Debug for KeySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySpace").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Model<'_> = Model {
        name: "model",
        revision: "1",
        dtype: "f16",
        layout_version: 1,
        block_tokens: 16,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 2,
        layers: 30,
        kv_heads: 3,
        head_dim: 64,
    };

    #[test]
    fn every_field_of_a_model_counts() {
        let changed = [
            Model { name: "modem", ..MODEL },
            Model { revision: "2", ..MODEL },
            Model { dtype: "bf16", ..MODEL },
            Model { layout_version: 2, ..MODEL },
            Model { block_tokens: 32, ..MODEL },
            Model { tensor_parallel_rank: 1, ..MODEL },
            Model { tensor_parallel_size: 4, ..MODEL },
            Model { layers: 31, ..MODEL },
            Model { kv_heads: 4, ..MODEL },
            Model { head_dim: 128, ..MODEL },
            // The same letters, divided differently.
            Model { name: "model1", revision: "", ..MODEL },
        ];
        let mut seen = vec![MODEL.fingerprint()];
        for model in changed {
            assert!(!seen.contains(&model.fingerprint()), "{model:?}");
            seen.push(model.fingerprint());
        }
    }

    #[test]
    fn keys_differ_by_hash_model_namespace_and_length() {
        let hash = BlockHash::new([7; 32]);
        let model = MODEL.fingerprint();
        let other_model = Model { layers: 31, ..MODEL }.fingerprint();
        let keys = [
            KeySpace::new(model, Namespace::default(), 4096).key(&hash),
            KeySpace::new(model, Namespace::default(), 4096).key(&BlockHash::new([8; 32])),
            KeySpace::new(model, Namespace::default(), 65536).key(&hash),
            KeySpace::new(other_model, Namespace::default(), 4096).key(&hash),
            KeySpace::new(model, Namespace::new("a", b"bc"), 4096).key(&hash),
            KeySpace::new(model, Namespace::new("ab", b"c"), 4096).key(&hash),
        ]
        .map(BlockKey::index);
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i}");
            assert_eq!(IndexKey::from_words(key.words()), *key);
        }
    }

    #[test]
    fn a_space_is_the_same_in_another_process() {
        let own = KeySpace::new(MODEL.fingerprint(), Namespace::new("a", b""), 64);
        let other = KeySpace::from_bytes(&own.to_bytes());
        let (marked, plain) = (BlockHash::new([0; 32]), BlockHash::new([7; 32]));
        assert_eq!(other.key(&plain), own.key(&plain));
        assert_eq!(
            [marked, plain].map(|hash| other.may_begin_with(own.key(&hash), [0; 4])),
            [true, false]
        );
    }

    #[test]
    fn the_namespace_without_a_name_is_one() {
        assert_eq!(Namespace::default(), Namespace::new("", b""));
        assert_ne!(Namespace::default(), Namespace::new("", b"salt"));
    }

    #[test]
    fn a_key_is_what_its_documentation_says() {
        let (fingerprint, namespace) = (MODEL.fingerprint(), Namespace::new("tenant", b"salt"));
        let mut bytes = [0; 64];
        bytes[..20].copy_from_slice(b"rackline block key 4");
        bytes[32..40].copy_from_slice(&fingerprint.get().to_le_bytes());
        bytes[40..56].copy_from_slice(&namespace.0);
        bytes[56..].copy_from_slice(&4096u64.to_le_bytes());
        let salt: [u8; 32] = Sha256::digest(bytes).into();
        let expected = xxh3_128(&[&salt[..16], &[9; 32]].concat());
        let key = KeySpace::new(fingerprint, namespace, 4096).key(&BlockHash::new([9; 32]));
        assert_eq!(key.as_bytes()[..16], expected.to_le_bytes());
        let witness = fingerprint.get() ^ u64::from_le_bytes([0, 0, 0, 0, 9, 9, 9, 9]);
        assert_eq!(key.as_bytes()[16..], witness.to_le_bytes());
    }

    #[test]
    fn a_key_of_another_model_is_none_of_this_model() {
        let space = |model: Model<'_>| KeySpace::new(model.fingerprint(), Namespace::default(), 64);
        let (own, other) = (space(MODEL), space(Model { layers: 31, ..MODEL }));
        for number in 0..=255 {
            let hash = BlockHash::new([number; 32]);
            assert_eq!(own.own(own.key(&hash)), own.key(&hash));
            assert_ne!(other.own(own.key(&hash)), own.key(&hash));
        }
    }
}
