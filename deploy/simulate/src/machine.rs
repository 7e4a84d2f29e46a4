//! What decode iterations take on a machine, for placements of the requests that run.

use kv_cache::placement::{
    Batch, BatchError, BigRational, Model, Placement, PlanError, Ratio, Request, evaluate,
};

use crate::profile::Profile;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u32 = 64;

/// A request that runs, as far as a machine knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Running {
    pub(crate) id: u64,
    /// Tokens whose KV exists.
    pub(crate) tokens: u64,
}

impl Running {
    /// Blocks a layer, the block for the next token among them.
    pub(crate) const fn blocks(self) -> u64 {
        self.tokens / BLOCK_TOKENS as u64 + 1
    }
}

/// A number of GPUs with one model.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) profile: Profile,
    /// GPUs over which each layer is divided.
    pub(crate) ranks: u16,
    pub(crate) gpu_blocks: u64,
    pub(crate) block_ns: u64,
}

/// What one iteration takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Iteration {
    pub(crate) layer_ns: u64,
    pub(crate) stall_ns: u64,
    pub(crate) moved_blocks: u64,
    /// Whether the GPU has room.
    pub(crate) fits: bool,
}

impl Iteration {
    pub(crate) const fn total_ns(self, layers: u16) -> u64 {
        self.layer_ns * layers as u64 + self.stall_ns
    }
}

impl Machine {
    pub(crate) fn new(profile: Profile, ranks: u16) -> Self {
        let gpu_blocks = profile.gpu_blocks(BLOCK_TOKENS, ranks);
        let block_ns = profile.block_ns(BLOCK_TOKENS, ranks);
        Self { profile, ranks, gpu_blocks, block_ns }
    }

    pub(crate) const fn layers(&self) -> u16 {
        self.profile.layers
    }

    pub(crate) fn layer_ns(&self, running: &[Running]) -> u64 {
        let context = running.iter().map(|it| it.tokens).sum();
        self.profile.layer_ns(context, self.ranks)
    }

    pub(crate) fn batch(&self, running: &[Running]) -> Result<Batch, BatchError> {
        let link = Ratio::new(self.layer_ns(running), self.block_ns);
        let requests = running.iter().map(|it| Request::new(it.blocks())).collect();
        Batch::new(self.layers().into(), link, self.gpu_blocks, requests)
    }

    /// One iteration of `running`, each with its placement.
    pub(crate) fn iteration(
        &self,
        running: &[Running],
        placements: &[Placement],
    ) -> Result<Iteration, PlanError> {
        let evaluated = evaluate(&self.batch(running)?, placements, Model::default())?;
        let stall = evaluated.stall_blocks * BigRational::from_integer(self.block_ns.into());
        Ok(Iteration {
            layer_ns: self.layer_ns(running),
            stall_ns: u64::try_from(stall.to_integer()).unwrap_or(u64::MAX),
            moved_blocks: evaluated.moved_blocks,
            fits: evaluated.feasible,
        })
    }
}
