//! Linear layers: rows of f32 times the weights, in the form this CPU is fast at.
//!
//! Each output is the dot product of one row with one weight row, in an order of summation that
//! depends on neither the number of rows nor the number of threads. Bit-exactness rests on this,
//! and the tests hold both forms to it.

mod float;
mod integer;

use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::{Device, Result, Tensor};

use float::FloatMatrix;
use integer::IntegerMatrix;

/// The kernels that linear layers run on.
///
/// The two round differently, so KV computed with one is not bit-equal to KV computed with the
/// other: processes that exchange blocks and promise equal tokens must use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Weights and rows in 8 bits, for CPUs whose vector units multiply bytes (AVX-512 VNNI,
    /// AVX-VNNI): twice the rows a second of [`Float`](Self::Float) in prefill, three times in
    /// decode, 420 MB a process.
    Integer,
    /// Everything in f32: any CPU, 630 MB a process.
    Float,
}

impl Kernels {
    /// The faster ones on this CPU.
    pub fn of_this_cpu() -> Self {
        if integer::is_fast() { Self::Integer } else { Self::Float }
    }
}

/// A weight matrix `[outputs][inputs]`.
#[derive(Debug)]
pub(crate) enum Linear {
    Integer(IntegerMatrix),
    Float(FloatMatrix),
}

impl Linear {
    /// Stacks matrices of the same inputs into one.
    pub(crate) fn stack(parts: &[QTensor], kernels: Kernels) -> Result<Self> {
        let parts = parts
            .iter()
            .map(|part| part.dequantize(&Device::Cpu))
            .collect::<Result<Vec<Tensor>>>()?;
        let stacked = Tensor::cat(&parts, 0)?;
        Ok(match kernels {
            Kernels::Integer => Self::Integer(IntegerMatrix::quantise(&stacked)?),
            Kernels::Float => Self::Float(FloatMatrix::new(stacked)?),
        })
    }

    /// The output layer: the token embedding `[tokens][hidden]`, read as a matrix.
    pub(crate) fn tied(embedding: &QTensor, kernels: Kernels) -> Result<Self> {
        Ok(match kernels {
            Kernels::Integer => Self::Integer(IntegerMatrix::tied(embedding)?),
            Kernels::Float => Self::Float(FloatMatrix::new(embedding.dequantize(&Device::Cpu)?)?),
        })
    }

    /// Outputs of one row.
    pub(crate) fn outputs(&self) -> usize {
        match self {
            Self::Integer(matrix) => matrix.outputs(),
            Self::Float(matrix) => matrix.outputs(),
        }
    }

    /// Values of one input row, padding included.
    pub(crate) fn input_width(&self) -> usize {
        match self {
            Self::Integer(matrix) => matrix.padded_inputs(),
            Self::Float(matrix) => matrix.inputs(),
        }
    }

    /// A zeroed input for `rows` rows, each [`input_width`](Self::input_width) wide. What lies
    /// behind the layer's own inputs must stay zero.
    pub(crate) fn input(&self, rows: usize) -> Vec<f32> {
        vec![0.0; rows * self.input_width()]
    }

    /// The outputs of every row of `input`.
    pub(crate) fn apply(&self, input: Vec<f32>) -> Result<Vec<f32>> {
        match self {
            Self::Integer(matrix) => matrix.apply(input),
            Self::Float(matrix) => matrix.apply(input),
        }
    }
}

/// The rows of `embedding` for `tokens`, side by side.
pub(crate) fn embed(embedding: &Arc<QTensor>, tokens: &[u32]) -> Result<Vec<f32>> {
    let ids = Tensor::from_slice(tokens, tokens.len(), &Device::Cpu)?;
    embedding.embedding(&ids)?.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::GgmlDType;

    use super::*;

    const KERNELS: [Kernels; 2] = [Kernels::Integer, Kernels::Float];

    fn matrix(rows: usize, columns: usize, seed: f32) -> Tensor {
        let values: Vec<f32> =
            (0..rows * columns).map(|at| (at as f32 * 0.37 + seed).sin()).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    fn linear(outputs: usize, inputs: usize, kernels: Kernels) -> Linear {
        let part =
            |rows, seed| QTensor::quantize(&matrix(rows, inputs, seed), GgmlDType::F32).unwrap();
        let parts = [part(outputs / 4, 0.0), part(outputs - outputs / 4, 1.0)];
        Linear::stack(&parts, kernels).unwrap()
    }

    fn rows(linear: &Linear, inputs: usize, count: usize) -> Vec<f32> {
        let mut input = linear.input(count);
        for (row, values) in input.chunks_exact_mut(linear.input_width()).enumerate() {
            for (at, value) in values[..inputs].iter_mut().enumerate() {
                *value = ((row * inputs + at) as f32 * 0.61).cos();
            }
        }
        input
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it() {
        for kernels in KERNELS {
            for (outputs, inputs) in [(960, 576), (576, 1536), (96, 256)] {
                let linear = linear(outputs, inputs, kernels);
                let input = rows(&linear, inputs, 140);
                let together = linear.apply(input.clone()).unwrap();
                for count in [1, 2, 3, 4, 7, 16, 33, 64, 65, 139] {
                    for first in [0, 1, 140 - count] {
                        let some = first * linear.input_width()
                            ..(first + count).min(140) * linear.input_width();
                        let got = linear.apply(input[some].to_vec()).unwrap();
                        let expected = &together[first * outputs..][..got.len()];
                        assert!(got == expected, "{kernels:?} {outputs} x {inputs}, {count} rows");
                    }
                }
            }
        }
    }

    #[test]
    fn the_product_is_close_to_the_exact_one() {
        let (outputs, inputs) = (96, 576);
        let weights = [matrix(24, inputs, 0.0), matrix(72, inputs, 1.0)]
            .map(|part| part.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .concat();
        for (kernels, tolerance) in KERNELS.into_iter().zip([0.5, 1e-3]) {
            let linear = linear(outputs, inputs, kernels);
            assert_eq!(linear.outputs(), outputs);
            let input = rows(&linear, inputs, 2);
            let got = linear.apply(input.clone()).unwrap();
            for (row, input) in input.chunks_exact(linear.input_width()).enumerate() {
                for (output, weights) in weights.chunks_exact(inputs).enumerate() {
                    let exact: f32 = input.iter().zip(weights).map(|(a, b)| a * b).sum();
                    let error = (got[row * outputs + output] - exact).abs();
                    assert!(error < tolerance, "{kernels:?} {row}, {output}: off by {error}");
                }
            }
        }
    }

    #[test]
    fn the_output_layer_is_the_embedding() {
        let table = matrix(70, 576, 2.0);
        let embedding = Arc::new(QTensor::quantize(&table, GgmlDType::Q8_0).unwrap());
        let row = embed(&embedding, &[33]).unwrap();
        let square: f32 = row.iter().map(|value| value * value).sum();
        for kernels in KERNELS {
            let output = Linear::tied(&embedding, kernels).unwrap();
            let mut input = output.input(1);
            input[..576].copy_from_slice(&row);
            let got = output.apply(input).unwrap();
            assert!((got[33] / square - 1.0).abs() < 0.01, "{kernels:?} {} {square}", got[33]);
        }
        assert!(embed(&embedding, &[70]).is_err());
    }
}
