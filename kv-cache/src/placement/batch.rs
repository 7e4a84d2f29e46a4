//! The requests that decode together, and the machine that they decode on.

use num_rational::Ratio;

/// Most layers of a model.
pub const LAYERS_MAX: u16 = 1024;
/// Most requests of a batch.
pub const REQUESTS_MAX: usize = 1024;
/// Most blocks of a layer, of the GPU, and of the link in a layer time. Also the most parts into
/// which a block of the link rate may be divided.
pub const BLOCKS_MAX: u64 = 1 << 32;
/// Every sum of the model stays below it, so none overflows 64 bits.
const TICKS_MAX: u128 = 1 << 62;

/// One request that decodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Blocks that each layer's KV takes, the block for the next token among them.
    pub blocks_per_layer: u64,
    /// Tokens for which the last block still has room, after this step's token. With 0 the step
    /// after this one takes another block a layer.
    pub free_tokens: u32,
    /// The time between two tokens that the reader was promised, in layer times. Without a promise
    /// no token is late.
    pub slo_layer_times: Option<Ratio<u64>>,
    /// Tokens of the request that are computed and not yet released.
    pub deposit_tokens: u32,
    /// How long ago the last token was released, in layer times: the next one is due that much sooner.
    /// `None` before the first token, which cannot be late.
    pub since_release: Option<Ratio<u64>>,
}

impl Request {
    /// A request of so many blocks a layer, of which the last is full, without an SLO.
    #[must_use]
    pub const fn new(blocks_per_layer: u64) -> Self {
        Self {
            blocks_per_layer,
            free_tokens: 0,
            slo_layer_times: None,
            deposit_tokens: 0,
            since_release: Some(Ratio::new_raw(0, 1)),
        }
    }
}

/// Requests that decode together: each decode iteration computes one token of each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    layers: u16,
    link: Ratio<u64>,
    gpu_blocks: u64,
    requests: Vec<Request>,
}

/// Why a batch cannot be planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Something of which there must be one at least is 0.
    #[error("{what} is 0: at least 1 is needed")]
    Zero {
        /// What it is.
        what: String,
    },
    /// A number is larger than any machine's.
    #[error("{what} is {number}: at most {most} can be planned; check the unit")]
    TooLarge {
        /// What it is.
        what: String,
        /// What was given.
        number: u64,
        /// The most.
        most: u64,
    },
    /// All requests together have more blocks than can be counted exactly.
    #[error(
        "the requests have too many blocks together to be counted exactly: give blocks of more \
         tokens, or a link rate with a smaller denominator"
    )]
    TooManyBlocks,
}

impl Batch {
    /// A batch on a GPU with room for `gpu_blocks`, with a link that brings `link` blocks in the
    /// time in which one layer executes. All layers take equally long.
    ///
    /// # Errors
    /// A number is 0, or larger than what can be planned.
    pub fn new(
        layers: u64,
        link: Ratio<u64>,
        gpu_blocks: u64,
        requests: Vec<Request>,
    ) -> Result<Self, BatchError> {
        let positive = |what: String, number: u64, most: u64| match number {
            0 => Err(BatchError::Zero { what }),
            _ if number > most => Err(BatchError::TooLarge { what, number, most }),
            _ => Ok(()),
        };
        let what = "the number of layers";
        positive(what.into(), layers, LAYERS_MAX.into())?;
        let layers = u16::try_from(layers).unwrap_or(LAYERS_MAX);
        positive("the number of blocks of the GPU".into(), gpu_blocks, BLOCKS_MAX)?;
        let count = requests.len() as u64;
        positive("the number of requests".into(), count, REQUESTS_MAX as u64)?;
        for (number, request) in requests.iter().enumerate() {
            let what = format!("the number of blocks per layer of request {}", number + 1);
            positive(what, request.blocks_per_layer, BLOCKS_MAX)?;
        }
        let what = "the denominator of the link rate";
        positive(what.into(), *link.denom(), u64::MAX)?;
        let link = link.reduced();
        positive(what.into(), *link.denom(), BLOCKS_MAX)?;
        positive("the blocks of the link in a layer time".into(), *link.numer(), BLOCKS_MAX)?;
        let blocks: u128 =
            requests.iter().map(|request| u128::from(request.blocks_per_layer)).sum();
        let ticks = blocks * u128::from(layers) * u128::from(*link.denom());
        if ticks + u128::from(layers) * u128::from(*link.numer()) > TICKS_MAX {
            return Err(BatchError::TooManyBlocks);
        }
        Ok(Self { layers, link, gpu_blocks, requests })
    }

    /// Layers of the model.
    #[must_use]
    pub const fn layers(&self) -> u16 {
        self.layers
    }

    /// Blocks that the link brings in a layer time, in lowest terms.
    #[must_use]
    pub const fn link(&self) -> Ratio<u64> {
        self.link
    }

    /// Blocks for which the GPU has room.
    #[must_use]
    pub const fn gpu_blocks(&self) -> u64 {
        self.gpu_blocks
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Blocks of all layers of all requests.
    #[must_use]
    pub fn all_blocks(&self) -> u64 {
        let per_layer: u64 = self.requests.iter().map(|request| request.blocks_per_layer).sum();
        per_layer * u64::from(self.layers)
    }

    /// The time of a layer, in ticks.
    ///
    /// A tick is the largest time of which both a layer and the transfer of a block take a whole
    /// number: the model needs no fractions then.
    pub(super) const fn layer_ticks(&self) -> u64 {
        *self.link.numer()
    }

    /// The time in which the link brings a block, in ticks.
    pub(super) const fn block_ticks(&self) -> u64 {
        *self.link.denom()
    }
}
