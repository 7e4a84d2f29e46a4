//! Why layers were not streamed.

use std::io;

use kv_cache::HoldError;

use crate::session::{FetchStop, SessionError};

/// Why an executor did not do what it was asked to. After an error of an iteration nothing that the
/// iteration computed is to be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// The layers are not those of a block, or cannot be read alone.
    #[error(
        "layers of {layers_bytes} bytes{} cannot be streamed from blocks of {block_bytes} bytes: the \
         layers need to be as long as a block, and each to begin on a line of 64 bytes",
        off_line.map_or(String::new(), |layer| format!(", of which layer {} is off a line", layer + 1))
    )]
    Layers {
        /// The first layer that does not begin on a line, counted from 0.
        off_line: Option<usize>,
        /// Sum of the layers in bytes.
        layers_bytes: u64,
        /// Length of a block in bytes.
        block_bytes: u64,
    },
    /// There is no such layer.
    #[error("there is no layer {layer}: layers are counted from 1 to {layers}")]
    NoSuchLayer {
        /// The number given.
        layer: u16,
        /// Layers of a block.
        layers: usize,
    },
    /// The request is not known.
    #[error("request {request} has no blocks here: admit it before its layers are offloaded")]
    NotAdmitted {
        /// The request.
        request: u64,
    },
    /// The request is known already.
    #[error("request {request} was admitted before: forget it first")]
    AdmittedTwice {
        /// The request.
        request: u64,
    },
    /// A batch has a request more than once.
    #[error("the batch names request {request} twice: name each request once")]
    NamedTwice {
        /// The request.
        request: u64,
    },
    /// A layer is not the next one of the iteration.
    #[error(
        "layer {layer} is not the next one of the iteration, which is layer {next}: ask before each \
         layer, say after it that it has executed, and begin another iteration after this error"
    )]
    NotNext {
        /// The number given.
        layer: u16,
        /// The layer that was to come.
        next: u16,
    },
    /// A layer has executed that the engine did not ask for.
    #[error(
        "layer {layer} has executed before it was asked for: ask before each layer, and begin another \
         iteration after this error"
    )]
    NotAsked {
        /// The layer, counted from 1.
        layer: u16,
    },
    /// No iteration is under way: none was begun, or it was given up after an error.
    #[error("no iteration is under way: begin one before its layers")]
    NoIteration,
    /// A block is lost or damaged.
    #[error(
        "block {block} of request {request} cannot be read{} ({}): {stop}; compute the request again",
        layer.map_or(String::new(), |layer| format!(" for layer {layer}")),
        stop.label()
    )]
    Block {
        /// The request.
        request: u64,
        /// The block, counted from 0.
        block: usize,
        /// The layer, counted from 1; `None` when the block was read whole.
        layer: Option<u16>,
        /// Why.
        stop: FetchStop,
    },
    /// A block cannot be held any longer.
    #[error(
        "block {block} of request {request} is not held any more: {reason}; compute the request again"
    )]
    Hold {
        /// The request.
        request: u64,
        /// The block, counted from 0.
        block: usize,
        /// Why.
        reason: HoldError,
    },
    /// The session refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The pool was closed, is too busy, or its threads are gone.
    #[error("the pool did not take up a transfer: {0}")]
    Refused(String),
    /// The thread of the executor was not started.
    #[error("the thread that streams layers cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The thread of the executor has ended.
    #[error("the thread that streams layers has ended: open another executor")]
    Ended,
}

/// What became of a layer's fetch, as its thread says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    Block { block: usize, stop: FetchStop },
    Session(SessionError),
    Refused(String),
}

impl Failure {
    pub(super) fn of(self, request: u64, layer: u16) -> ExecutorError {
        match self {
            Self::Block { block, stop } => {
                ExecutorError::Block { request, block, layer: Some(layer), stop }
            }
            Self::Session(error) => error.into(),
            Self::Refused(reason) => ExecutorError::Refused(reason),
        }
    }
}
