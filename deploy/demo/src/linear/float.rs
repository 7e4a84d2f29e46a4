//! Weights and rows in f32, on candle's matrix multiplication.

use candle_core::{Device, Result, Tensor};

/// With this many outputs or fewer, the multiplication could take paths for small products.
const FEWEST_OUTPUTS: usize = 64;

/// With at most this many results, or with a single row, the multiplication takes a path that sums
/// in another order.
const SMALL_RESULTS: usize = 256;

#[derive(Debug)]
pub(crate) struct FloatMatrix {
    /// `[inputs][outputs]`: so a few rows need no rearranging of the weights.
    weight: Tensor,
    outputs: usize,
    inputs: usize,
}

impl FloatMatrix {
    pub(super) fn new(weight: Tensor) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if outputs <= FEWEST_OUTPUTS {
            candle_core::bail!("a layer has {outputs} outputs; more than {FEWEST_OUTPUTS} needed")
        }
        Ok(Self { weight: weight.t()?.contiguous()?, outputs, inputs })
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(super) fn apply(&self, mut input: Vec<f32>) -> Result<Vec<f32>> {
        let rows = input.len() / self.inputs;
        // Zero rows keep a few rows on the path that many rows take.
        let computed = rows.max(2).max(SMALL_RESULTS / self.outputs + 1);
        input.resize(computed * self.inputs, 0.0);
        let input = Tensor::from_vec(input, (computed, self.inputs), &Device::Cpu)?;
        let mut output = input.matmul(&self.weight)?.flatten_all()?.to_vec1()?;
        output.truncate(rows * self.outputs);
        Ok(output)
    }
}
