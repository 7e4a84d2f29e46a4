//! Why a session was not opened, or did not do what it was asked to.

use cxl_shm::host::MembershipLost;

use crate::options::{OptionsError, SessionOptions};

/// A call that was not carried out at all: the caller's buffers do not fit the session, or this
/// process has lost its membership of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The parts of a block are not as long as a block.
    #[error("the parts of block {index} have {parts_bytes} bytes, a block has {block_bytes}")]
    Length {
        /// Index of the block in the batch.
        index: usize,
        /// Length of its parts in bytes.
        parts_bytes: u64,
        /// Length of a block in bytes.
        block_bytes: u64,
    },
    /// The layers are not as long as a block.
    #[error("the layers have {layers_bytes} bytes, a block has {block_bytes}")]
    Layers {
        /// Sum of their lengths in bytes.
        layers_bytes: u64,
        /// Length of a block in bytes.
        block_bytes: u64,
    },
    /// There is no such layer, it does not begin on a line, or a checksum or a part is not that of
    /// the layer.
    #[error(
        "layer {layer} cannot be fetched alone: it needs to be one of {layers} layers, to begin on a \
         line of 64 bytes, and one checksum and parts of {layer_bytes} bytes for each block"
    )]
    OneLayer {
        /// The layer asked for, counted from 0.
        layer: usize,
        /// Layers of a block.
        layers: usize,
        /// Length of the layer in bytes; 0 when there is none.
        layer_bytes: u64,
    },
    /// Not one destination for each block.
    #[error("{blocks} blocks are to be fetched into {destinations} destinations")]
    Destinations {
        /// Blocks asked for.
        blocks: usize,
        /// Destinations given.
        destinations: usize,
    },
    /// This process has lost its membership of the pool. It attaches again when all processes of
    /// its host have ended or left.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// Why a session was not opened. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The blocks are too long for the region, or have no bytes.
    #[error(
        "blocks of {block_bytes} bytes do not fit this region: a block needs 1 to {most_bytes} bytes, \
         which is a chunk of it; let blocks have fewer tokens, or format the region with a larger --chunk"
    )]
    Length {
        /// Length asked for, in bytes.
        block_bytes: u64,
        /// Longest possible, in bytes.
        most_bytes: u64,
    },
    /// Options out of range.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// This process is a child of the one that attached, made by `fork`.
    #[error(
        "this process is a forked child of the process that attached: attach again in the child"
    )]
    Forked,
    /// The pool was closed.
    #[error("the pool was closed in this process")]
    Closed,
}

impl OpenError {
    /// Refuses a session of which no block could ever be published or fetched, in a region with
    /// room for blocks of `most_bytes` bytes.
    pub(crate) fn check(options: &SessionOptions, most_bytes: u64) -> Result<(), Self> {
        options.check()?;
        let block_bytes = options.block_bytes();
        if (1..=most_bytes).contains(&block_bytes) {
            Ok(())
        } else {
            Err(Self::Length { block_bytes, most_bytes })
        }
    }
}
