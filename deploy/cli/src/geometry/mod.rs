//! `rackline geometry`: how much KV a model makes, and so how much of it a pool holds.

mod known;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;
use kv_cache::{Attention, Dtype, KvGeometry};
use serde::Serialize;

use self::known::{KNOWN_MODELS, known_model};
use crate::output::{complain, say};

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
///   rackline geometry
///   rackline geometry Llama-3.1-70B DeepSeek-V3 --tp 8 --dtype fp8_e4m3
///   rackline geometry --layers 30 --kv-heads 3 --head-dim 64
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
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for (model, outcome) in rows(options)? {
        match outcome {
            Ok(row) if options.json => say!("{}", serde_json::to_string(&row)?),
            Ok(row) => print(&row),
            Err(error) => complain!("{model}: {error}"),
        }
    }
    Ok(())
}

type Rows = Vec<(String, Result<Row, kv_cache::KvGeometryError>)>;

fn rows(options: &Options) -> Result<Rows> {
    let row = |name: &str, layers, attention| {
        let geometry = KvGeometry::new(layers, attention, options.dtype, options.block_tokens);
        let geometry = geometry.and_then(|geometry| geometry.rank(0, options.tp));
        (name.to_owned(), geometry.map(|geometry| Row::new(name, options.tp, &geometry)))
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
    fn new(name: &str, tp: u32, geometry: &KvGeometry) -> Self {
        let (kv_heads, head_dim, latent) = match geometry.attention() {
            Attention::Heads { kv_heads, head_dim } => (Some(kv_heads), Some(head_dim), None),
            Attention::Latent { elements } => (None, None, Some(elements)),
        };
        Self {
            model: name.to_owned(),
            layers: geometry.layers(),
            kv_heads,
            head_dim,
            latent,
            dtype: geometry.dtype().name(),
            token_bytes: geometry.token_bytes(),
            block_tokens: geometry.block_tokens(),
            tensor_parallel_size: tp,
            parts: geometry.part().of,
            rank_block_bytes: geometry.rank_block_bytes(),
            tokens_per_gib: GIB / geometry.token_bytes(),
        }
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
        "KV in {}, {} tokens a block, {} tensor-parallel rank{}",
        options.dtype,
        options.block_tokens,
        options.tp,
        if options.tp == 1 { "" } else { "s" }
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
}
