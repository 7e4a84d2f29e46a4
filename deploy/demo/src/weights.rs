//! The weights, read from the file into the form the forward pass wants.

use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::QTensor;

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::gguf::{Gguf, GgufError};
use crate::linear::{Kernels, Linear};

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    /// Q, K and V below one another.
    pub(crate) query_key_value: Linear,
    pub(crate) attention_output: Linear,
    pub(crate) feed_forward_norm: Vec<f32>,
    /// Gate and up below one another.
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: Arc<QTensor>,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) output: Linear,
}

impl Weights {
    pub(crate) fn read(
        gguf: &mut Gguf,
        config: &ModelConfig,
        kernels: Kernels,
    ) -> Result<Self, LoadError> {
        let embedding = Arc::new(gguf.tensor("token_embd.weight")?);
        // First, because what it needs for a moment is the largest.
        let output = Linear::tied(&embedding, kernels)?;
        let layers = (0..config.layers)
            .map(|layer| LayerWeights::read(gguf, layer, kernels))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { embedding, layers, output_norm: vector(gguf, "output_norm.weight")?, output })
    }
}

impl LayerWeights {
    fn read(gguf: &mut Gguf, layer: usize, kernels: Kernels) -> Result<Self, LoadError> {
        let mut matrices = |names: &[&str]| -> Result<Linear, LoadError> {
            let parts = names
                .iter()
                .map(|name| gguf.tensor(&format!("blk.{layer}.{name}.weight")))
                .collect::<Result<Vec<_>, GgufError>>()?;
            Ok(Linear::stack(&parts, kernels)?)
        };
        Ok(Self {
            query_key_value: matrices(&["attn_q", "attn_k", "attn_v"])?,
            attention_output: matrices(&["attn_output"])?,
            gate_up: matrices(&["ffn_gate", "ffn_up"])?,
            down: matrices(&["ffn_down"])?,
            attention_norm: vector(gguf, &format!("blk.{layer}.attn_norm.weight"))?,
            feed_forward_norm: vector(gguf, &format!("blk.{layer}.ffn_norm.weight"))?,
        })
    }
}

fn vector(gguf: &mut Gguf, name: &str) -> Result<Vec<f32>, LoadError> {
    Ok(gguf.tensor(name)?.dequantize(&Device::Cpu)?.to_vec1()?)
}
