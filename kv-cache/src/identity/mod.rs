//! Names: what makes two blocks the same, and who may read them.

mod hash;
mod key;

pub use hash::{ChainHasher, dynamo, vllm};
pub(crate) use key::IndexKey;
pub use key::{BlockHash, BlockKey, KeySpace, Model, ModelFingerprint, Namespace, NamespaceTag};
