//! The small engine of `rackline demo`: SmolLM2-135M-Instruct on candle-core.
//!
//! Engines hide their KV cache; this one takes it as an argument. [`Model::forward`] computes the
//! tokens it is given behind whatever [`KvCache`] already holds, and [`KvCache`] hands out and
//! takes in blocks of 16 tokens as plain bytes, whole or layer by layer. Where those bytes come
//! from (a pool, a file, another process) is not this crate's business: it knows nothing of the
//! pool.
//!
//! # Bit-exactness
//!
//! The KV bytes of a token and the logits behind it depend on the tokens alone: not on how a prompt
//! was split between imported blocks and computed rest, not on whether a token went through prefill
//! or through a decode step, and not on the number of threads. Three rules give this:
//!
//! - **Linear layers** are dot products of one activation row with one weight row. Rows never share
//!   a sum, and few rows take the same path as many ([`Kernels`]).
//! - **Attention** is blocked at fixed token positions ([`attention`]), and masked keys add an
//!   exact zero, so a sum is the same whether later tokens are there or not.
//! - **K and V are rounded to f16 before attention reads them**, so local and imported blocks are
//!   the same numbers.
//!
//! It holds between processes on one kind of CPU with the same [`Kernels`]. Different kinds round
//! differently; a model fingerprint for a pool that spans them has to say so.
//!
//! # Parts
//!
//! [`model_file`] finds or fetches the weights; [`Gguf`] opens them; [`Tokenizer`] and [`chat`]
//! turn conversations into token ids; [`Model`] and [`KvCache`] compute; [`generate`] decodes and
//! streams; [`workload`] plans conversations that share long prefixes; [`threads`] says how many
//! threads a worker takes.

pub mod attention;
pub mod chat;
mod config;
mod error;
pub mod generate;
mod gguf;
pub mod kv;
mod linear;
mod math;
mod model;
pub mod model_file;
mod rope;
mod steps;
pub mod threads;
mod tokenizer;
mod weights;
pub mod workload;

pub use config::ModelConfig;
pub use error::{ForwardError, LoadError};
pub use gguf::{Gguf, GgufError};
pub use kv::{KvCache, KvError, KvGeometry};
pub use linear::Kernels;
pub use model::{Logits, Model};
pub use steps::{BatchSteps, LayerSteps, NoSteps, Sequence};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
