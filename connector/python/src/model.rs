//! What the bytes of a block mean.

use pyo3::prelude::*;

/// Everything that decides what the bytes of a block mean. Two engines share blocks when all of it
/// is equal.
#[pyclass(frozen, get_all, module = "rackline")]
pub(crate) struct Model {
    name: String,
    revision: String,
    dtype: String,
    layout_version: u32,
    block_tokens: u32,
    tensor_parallel_rank: u32,
    tensor_parallel_size: u32,
    layers: u32,
    kv_heads: u32,
    head_dim: u32,
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (
        *, name, revision, dtype, block_tokens, layers, kv_heads, head_dim, layout_version = 1,
        tensor_parallel_rank = 0, tensor_parallel_size = 1,
    ))]
    #[expect(clippy::too_many_arguments, reason = "all by name, in Python")]
    fn new(
        name: String,
        revision: String,
        dtype: String,
        block_tokens: u32,
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
        layout_version: u32,
        tensor_parallel_rank: u32,
        tensor_parallel_size: u32,
    ) -> Self {
        Self {
            name,
            revision,
            dtype,
            layout_version,
            block_tokens,
            tensor_parallel_rank,
            tensor_parallel_size,
            layers,
            kv_heads,
            head_dim,
        }
    }

    /// What stands for all of it, as text.
    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:?}", self.model().fingerprint())
    }
}

impl Model {
    pub(crate) fn model(&self) -> rackline::Model<'_> {
        rackline::Model {
            name: &self.name,
            revision: &self.revision,
            dtype: &self.dtype,
            layout_version: self.layout_version,
            block_tokens: self.block_tokens,
            tensor_parallel_rank: self.tensor_parallel_rank,
            tensor_parallel_size: self.tensor_parallel_size,
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}
