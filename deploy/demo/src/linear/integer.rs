//! Weights and rows in 8 bits, on candle's quantised matrices.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Result, Tensor};

/// Inputs are padded with zeros to a multiple of this, which candle's integer kernels need.
const INPUT_MULTIPLE: usize = 256;

/// The format of the weights: blocks of 32 signed bytes and an f16 scale.
const FORMAT: GgmlDType = GgmlDType::Q8_0;

/// Whether candle has kernels for this CPU that multiply bytes in one instruction. Without them the
/// product is right too, but slower than in f32.
pub(super) fn is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    let fast = std::arch::is_x86_feature_detected!("avx512vnni")
        || std::arch::is_x86_feature_detected!("avxvnni");
    // On ARM candle takes different kernels for different numbers of rows.
    #[cfg(not(target_arch = "x86_64"))]
    let fast = false;
    fast
}

#[derive(Debug)]
pub(crate) struct IntegerMatrix {
    weight: QMatMul,
    outputs: usize,
    padded_inputs: usize,
}

impl IntegerMatrix {
    pub(super) fn quantise(weight: &Tensor) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let padded_inputs = inputs.next_multiple_of(INPUT_MULTIPLE);
        let padded = weight.pad_with_zeros(1, 0, padded_inputs - inputs)?;
        Ok(Self::new(QTensor::quantize(&padded, FORMAT)?, outputs, padded_inputs))
    }

    /// The table with its rows padded. As bytes: widened to f32 it would take 150 MB for a moment.
    pub(super) fn tied(table: &QTensor) -> Result<Self> {
        if table.dtype() != FORMAT {
            candle_core::bail!(
                "the token embedding is {:?}, the engine needs {FORMAT:?}",
                table.dtype()
            )
        }
        let (outputs, inputs) = table.shape().dims2()?;
        let padded_inputs = inputs.next_multiple_of(INPUT_MULTIPLE);
        let bytes = |values: usize| values / FORMAT.block_size() * FORMAT.type_size();
        let from = table.data()?;
        let mut padded = vec![0u8; outputs * bytes(padded_inputs)];
        let rows = padded.chunks_exact_mut(bytes(padded_inputs));
        for (to, from) in rows.zip(from.chunks_exact(bytes(inputs))) {
            to[..from.len()].copy_from_slice(from);
        }
        let storage = QStorage::from_data(Cow::Owned(padded), &Device::Cpu, FORMAT)?;
        Ok(Self::new(QTensor::new(storage, (outputs, padded_inputs))?, outputs, padded_inputs))
    }

    fn new(weight: QTensor, outputs: usize, padded_inputs: usize) -> Self {
        // Not `from_qtensor`, which an environment variable can make widen the weights to f32: that
        // product depends on the number of rows.
        Self { weight: QMatMul::QTensor(Arc::new(weight)), outputs, padded_inputs }
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn padded_inputs(&self) -> usize {
        self.padded_inputs
    }

    pub(super) fn apply(&self, input: Vec<f32>) -> Result<Vec<f32>> {
        let rows = input.len() / self.padded_inputs;
        let input = Tensor::from_vec(input, (rows, self.padded_inputs), &Device::Cpu)?;
        self.weight.forward(&input)?.flatten_all()?.to_vec1()
    }
}
