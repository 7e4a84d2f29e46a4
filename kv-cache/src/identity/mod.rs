//! Names: what makes two blocks the same, and who may read them.

mod hash;
mod key;

pub use hash::{ChainHasher, dynamo, vllm};
pub use key::{
    BlockHash, BlockKey, IndexKey, KeySpace, Model, ModelFingerprint, Namespace, NamespaceTag,
};
