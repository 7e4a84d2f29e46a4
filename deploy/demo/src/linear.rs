//! Linear layers: rows of f32 times quantised weights.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Result, Tensor};

/// Inputs are padded with zeros to a multiple of this, which is what candle's widest integer kernels
/// need. On CPUs that have them a row takes half the time it takes in f32, a decode step a third,
/// the zeros included.
const INPUT_MULTIPLE: usize = 256;

/// The format of the weights in memory: blocks of 32 signed bytes and an f16 scale.
const FORMAT: GgmlDType = GgmlDType::Q8_0;

/// A weight matrix `[outputs][inputs]`.
///
/// Each output is the dot product of one row with one weight row, whose order of summation depends
/// on neither the number of rows nor the number of threads. Bit-exactness rests on this.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: QMatMul,
    outputs: usize,
    padded_inputs: usize,
}

impl Linear {
    /// Stacks matrices of the same inputs into one, and quantises them.
    pub(crate) fn stack(parts: &[QTensor]) -> Result<Self> {
        let parts = parts
            .iter()
            .map(|part| part.dequantize(&Device::Cpu))
            .collect::<Result<Vec<Tensor>>>()?;
        let stacked = Tensor::cat(&parts, 0)?;
        let (outputs, inputs) = stacked.dims2()?;
        let padded_inputs = inputs.next_multiple_of(INPUT_MULTIPLE);
        let padded = stacked.pad_with_zeros(1, 0, padded_inputs - inputs)?;
        let weight = QMatMul::from_qtensor(QTensor::quantize(&padded, FORMAT)?)?;
        Ok(Self { weight, outputs, padded_inputs })
    }

    /// A padded table as a linear layer: the output layer is the embedding, transposed.
    pub(crate) fn tied(table: &Arc<QTensor>) -> Result<Self> {
        let (outputs, padded_inputs) = table.shape().dims2()?;
        let weight = QMatMul::from_arc(Arc::clone(table))?;
        Ok(Self { weight, outputs, padded_inputs })
    }

    /// Outputs of one row.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// A zeroed input for `rows` rows, each [`Self::padded_inputs`] wide.
    pub(crate) fn input(&self, rows: usize) -> Vec<f32> {
        vec![0.0; rows * self.padded_inputs]
    }

    /// Values of one input row, the padding included.
    pub(crate) fn padded_inputs(&self) -> usize {
        self.padded_inputs
    }

    /// The outputs of every row of `input`.
    pub(crate) fn apply(&self, input: Vec<f32>) -> Result<Vec<f32>> {
        let rows = input.len() / self.padded_inputs;
        let input = Tensor::from_vec(input, (rows, self.padded_inputs), &Device::Cpu)?;
        self.weight.forward(&input)?.flatten_all()?.to_vec1()
    }
}

/// The token embedding with its rows padded, in the format it has in the file.
///
/// The rows are padded as bytes: widening the table to f32 would take 150 MB for a moment.
pub(crate) fn pad_table(table: &QTensor) -> Result<QTensor> {
    if table.dtype() != FORMAT {
        candle_core::bail!(
            "the token embedding is {:?}, the engine needs {FORMAT:?}",
            table.dtype()
        )
    }
    let (rows, inputs) = table.shape().dims2()?;
    let padded_inputs = inputs.next_multiple_of(INPUT_MULTIPLE);
    let row_bytes = inputs / FORMAT.block_size() * FORMAT.type_size();
    let padded_row_bytes = padded_inputs / FORMAT.block_size() * FORMAT.type_size();
    let from = table.data()?;
    let mut bytes = vec![0u8; rows * padded_row_bytes];
    for (to, from) in bytes.chunks_exact_mut(padded_row_bytes).zip(from.chunks_exact(row_bytes)) {
        to[..row_bytes].copy_from_slice(from);
    }
    let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, FORMAT)?;
    QTensor::new(storage, (rows, padded_inputs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, seed: f32) -> Tensor {
        let values: Vec<f32> =
            (0..rows * columns).map(|at| (at as f32 * 0.37 + seed).sin()).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    fn linear(outputs: usize, inputs: usize) -> Linear {
        let part =
            |rows, seed| QTensor::quantize(&matrix(rows, inputs, seed), GgmlDType::F32).unwrap();
        Linear::stack(&[part(outputs / 4, 0.0), part(outputs - outputs / 4, 1.0)]).unwrap()
    }

    fn rows(linear: &Linear, inputs: usize, count: usize) -> Vec<f32> {
        let mut input = linear.input(count);
        for (row, values) in input.chunks_exact_mut(linear.padded_inputs()).enumerate() {
            for (at, value) in values[..inputs].iter_mut().enumerate() {
                *value = ((row * inputs + at) as f32 * 0.61).cos();
            }
        }
        input
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it() {
        for (outputs, inputs) in [(960, 576), (576, 1536), (64, 256)] {
            let linear = linear(outputs, inputs);
            let input = rows(&linear, inputs, 70);
            let together = linear.apply(input.clone()).unwrap();
            for count in [1, 2, 3, 4, 7, 16, 33, 69] {
                let some = &input[..count * linear.padded_inputs()];
                let got = linear.apply(some.to_vec()).unwrap();
                assert!(got == together[..got.len()], "{outputs} x {inputs}, {count} rows");
            }
            let last = linear.apply(input[69 * linear.padded_inputs()..].to_vec()).unwrap();
            assert!(last == together[69 * outputs..]);
        }
    }

    #[test]
    fn the_product_is_close_to_the_exact_one() {
        let (outputs, inputs) = (64, 576);
        let linear = linear(outputs, inputs);
        let input = rows(&linear, inputs, 2);
        let got = linear.apply(input.clone()).unwrap();
        let weights = [matrix(16, inputs, 0.0), matrix(48, inputs, 1.0)]
            .map(|part| part.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .concat();
        for row in 0..2 {
            for output in 0..outputs {
                let exact: f32 = (0..inputs)
                    .map(|at| {
                        input[row * linear.padded_inputs() + at] * weights[output * inputs + at]
                    })
                    .sum();
                let error = (got[row * outputs + output] - exact).abs();
                assert!(error < 0.5, "row {row}, output {output}: off by {error}");
            }
        }
    }

    #[test]
    fn a_padded_table_has_the_same_rows() {
        let table = QTensor::quantize(&matrix(5, 64, 2.0), FORMAT).unwrap();
        let padded = pad_table(&table).unwrap();
        assert_eq!(padded.shape().dims(), [5, 256]);
        let before: Vec<Vec<f32>> = table.dequantize(&Device::Cpu).unwrap().to_vec2().unwrap();
        let after: Vec<Vec<f32>> = padded.dequantize(&Device::Cpu).unwrap().to_vec2().unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before[..], after[..64]);
            assert!(after[64..].iter().all(|&value| value == 0.0));
        }
    }
}
