//! `rackline geometry`: how much KV a model makes, and so how much of it a pool holds.

mod cost;
mod known;
mod prompt;
mod tiers;

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use kv_cache::{Attention, Dtype, KvGeometry};
use serde::Serialize;

use self::cost::{Cost, Prices};
use self::known::{KNOWN_MODELS, known_model};
use self::prompt::Prompt;
use self::tiers::{Tiers, Times};
use crate::output::{complain, counted, say};

const GIB: u64 = 1 << 30;

/// Show the KV bytes of models for a token and a block, and the tokens in a GiB of the pool
///
/// Without arguments the command shows all built-in models. Describe another model by the numbers
/// of its config.json: --layers (num_hidden_layers) with --kv-heads (num_key_value_heads) and --head-dim,
/// or, for latent attention (MLA), with --latent (kv_lora_rank + qk_rope_head_dim).
///
/// Tensor-parallel ranks divide the KV heads. Equal parts of several ranks are stored once in the
/// pool: everything with MLA, and heads when there are fewer heads than ranks.
///
/// With --prompt, --tiers and --cost the command also shows what a prompt is made of, how long each
/// tier takes to bring it, and what it costs. deploy/docs/sizing.md explains the figures.
///
///   rackline geometry
///   rackline geometry Llama-3.1-70B DeepSeek-V3 --tp 8 --dtype fp8_e4m3
///   rackline geometry --layers 30 --kv-heads 3 --head-dim 64
///   rackline geometry Qwen3-32B --block-tokens 64 --prompt 131072 --tiers=nvme=29 --layer-ms 8
///   rackline geometry Llama-3.1-70B --tp 8 --cost --prefill-tokens-s 20000 --hit-rate 0.6
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// Names of models, as published.
    #[arg(value_name = "MODEL", conflicts_with = "layers")]
    models: Vec<String>,

    /// Layers with KV, of a model that is not built in.
    #[arg(long, value_name = "N")]
    layers: Option<u32>,

    /// KV heads of a layer.
    #[arg(long, value_name = "N", requires = "layers", requires = "head_dim")]
    kv_heads: Option<u32>,

    /// Elements of a head.
    #[arg(long, value_name = "N", requires = "kv_heads")]
    head_dim: Option<u32>,

    /// Elements of the latent vector of a layer.
    #[arg(long, value_name = "N", requires = "layers", conflicts_with = "kv_heads")]
    latent: Option<u32>,

    /// Type of the KV's elements: f32, f16, bf16, fp8_e4m3 or fp8_e5m2.
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    dtype: Dtype,

    /// Tokens in a block.
    #[arg(long, value_name = "N", default_value_t = 16)]
    block_tokens: u32,

    /// Tensor-parallel ranks of the engine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: u32,

    /// Show the blocks, and the pieces of memory, of a prompt of so many tokens.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    prompt: Option<u64>,

    /// Show how long each tier takes to bring a block: hbm, pcie, cxl, nvme and network. Other
    /// figures than the built-in ones: --tiers=nvme=29,network=25:3 (GB/s, microseconds of latency).
    #[arg(long, value_name = "NAME=GB/S[:US],...", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "")]
    tiers: Option<Tiers>,

    /// Time in which a layer computes, to show what of the transfer of --prompt it hides.
    #[arg(long, value_name = "MS", requires = "prompt", requires = "tiers")]
    layer_ms: Option<f64>,

    /// Show what a million prompt tokens cost, and the hit rates at which tiers pay for themselves.
    #[arg(long, requires = "prefill_tokens_s")]
    cost: bool,

    #[command(flatten)]
    prices: Prices,

    /// Print one JSON object for each model.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    layers: u32,
    kv_heads: Option<u32>,
    head_dim: Option<u32>,
    latent: Option<u32>,
    dtype: &'static str,
    /// Of the whole model, each part once.
    token_bytes: u64,
    block_tokens: u32,
    tensor_parallel_size: u32,
    /// Different parts that the ranks hold.
    parts: u32,
    /// What one rank publishes for a block.
    rank_block_bytes: u64,
    tokens_per_gib: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Prompt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tiers: Option<Vec<Times>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(layer_ms) = options.layer_ms.filter(|ms| !(ms.is_finite() && *ms >= 0.0)) {
        bail!("--layer-ms {layer_ms} is no time: give a number of at least 0");
    }
    for (model, outcome) in rows(options)? {
        match outcome {
            Ok(row) if options.json => say!("{}", serde_json::to_string(&row)?),
            Ok(row) => print(&row),
            Err(error) => complain!("{model}: {error}"),
        }
    }
    Ok(())
}

type Rows = Vec<(String, Result<Row>)>;

fn rows(options: &Options) -> Result<Rows> {
    let row = |name: &str, layers, attention| {
        let geometry = KvGeometry::new(layers, attention, options.dtype, options.block_tokens);
        let geometry = geometry.and_then(|geometry| geometry.rank(0, options.tp));
        let row = geometry.map(|geometry| Row::new(name, options, &geometry));
        (name.to_owned(), row.unwrap_or_else(|error| Err(error.into())))
    };
    let asked = if let Some(layers) = options.layers {
        vec![row("this model", layers, attention(options)?)]
    } else if options.models.is_empty() {
        if !options.json {
            print_head(options);
        }
        // Some of all models may not be divisible: that is said, and no failure.
        return Ok(KNOWN_MODELS
            .iter()
            .map(|model| row(model.name, model.layers, model.attention))
            .collect());
    } else {
        let known = |name: &String| match known_model(name) {
            Some(model) => Ok(row(model.name, model.layers, model.attention)),
            None => bail!(
                "model \"{name}\" is not built in: `rackline geometry` lists the built-in models; \
                 describe another one with --layers, --kv-heads and --head-dim (or --latent)"
            ),
        };
        options.models.iter().map(known).collect::<Result<_>>()?
    };
    for (_, outcome) in &asked {
        if let Err(error) = outcome {
            bail!("{error}");
        }
    }
    if !options.json {
        print_head(options);
    }
    Ok(asked)
}

fn attention(options: &Options) -> Result<Attention> {
    match (options.kv_heads, options.head_dim, options.latent) {
        (Some(kv_heads), Some(head_dim), None) => Ok(Attention::Heads { kv_heads, head_dim }),
        (None, None, Some(elements)) => Ok(Attention::Latent { elements }),
        _ => bail!("--layers needs --kv-heads and --head-dim, or --latent"),
    }
}

impl Row {
    fn new(name: &str, options: &Options, geometry: &KvGeometry) -> Result<Self> {
        let counted = |tokens| {
            let prompt = Prompt::new(geometry, tokens);
            prompt.with_context(|| {
                format!("the KV of {tokens} tokens is larger than any memory: check --prompt")
            })
        };
        let prompt = options.prompt.map(counted).transpose()?;
        let (block, layers) = (geometry.rank_block_bytes(), geometry.layers());
        let times = |tiers| Times::of(tiers, block, layers, prompt.as_ref(), options.layer_ms);
        let cost = || {
            let tiers = options.tiers.clone().unwrap_or_default();
            Cost::new(&options.prices, &tiers, options.tp, geometry.rank_token_bytes())
        };
        let (kv_heads, head_dim, latent) = match geometry.attention() {
            Attention::Heads { kv_heads, head_dim } => (Some(kv_heads), Some(head_dim), None),
            Attention::Latent { elements } => (None, None, Some(elements)),
        };
        Ok(Self {
            model: name.to_owned(),
            layers: geometry.layers(),
            kv_heads,
            head_dim,
            latent,
            dtype: geometry.dtype().name(),
            token_bytes: geometry.token_bytes(),
            block_tokens: geometry.block_tokens(),
            tensor_parallel_size: options.tp,
            parts: geometry.part().of,
            rank_block_bytes: geometry.rank_block_bytes(),
            tokens_per_gib: GIB / geometry.token_bytes(),
            prompt,
            tiers: options.tiers.as_ref().map(times),
            cost: options.cost.then(cost).flatten(),
        })
    }

    fn shape(&self) -> String {
        match (self.kv_heads, self.head_dim, self.latent) {
            (Some(kv_heads), Some(head_dim), _) => format!("{kv_heads} x {head_dim}"),
            (.., latent) => format!("MLA {}", latent.unwrap_or_default()),
        }
    }
}

fn print_head(options: &Options) {
    say!(
        "KV in {}, {} a block, {}",
        options.dtype,
        counted(options.block_tokens.into(), "token"),
        counted(options.tp.into(), "tensor-parallel rank")
    );
    say!(
        "{:<24} {:>6} {:>9} {:>13} {:>6} {:>20} {:>13}",
        "model",
        "layers",
        "KV heads",
        "bytes/token",
        "parts",
        "block of a rank",
        "tokens/GiB"
    );
}

fn print(row: &Row) {
    say!(
        "{:<24} {:>6} {:>9} {:>13} {:>6} {:>20} {:>13}",
        row.model,
        row.layers,
        row.shape(),
        row.token_bytes,
        row.parts,
        ByteSize(row.rank_block_bytes).to_string(),
        row.tokens_per_gib
    );
    if let Some(prompt) = &row.prompt {
        prompt.print();
    }
    if let Some(tiers) = &row.tiers {
        Times::print_all(tiers, row.rank_block_bytes);
    }
    if let Some(cost) = &row.cost {
        cost.print();
    }
}
