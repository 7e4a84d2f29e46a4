//! What the bytes of a block mean.
#![expect(unsafe_code, reason = "a function that C calls")]

use std::ffi::c_char;

use rackline::Model;

use super::arguments::{place, text, value};
use super::error::{Failure, RacklineError, code};

/// Everything that decides what the bytes of a block mean. Two engines share blocks when all of it
/// is equal.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineModel {
    /// Name of the model.
    pub name: *const c_char,
    /// Revision of its weights.
    pub revision: *const c_char,
    /// Type of the elements, as the engine calls it.
    pub dtype: *const c_char,
    /// Version of the order of the bytes in a block, which the engine defines. 0 stands for 1.
    pub layout_version: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Which part of the heads this engine holds, from 0.
    pub tensor_parallel_rank: u32,
    /// In how many parts the heads are divided. 0 stands for 1.
    pub tensor_parallel_size: u32,
    /// Layers with KV.
    pub layers: u32,
    /// KV heads of a layer, over all parts.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

/// The model that C describes at `model`.
///
/// # Safety
/// `model` is null or points to a model; its texts are null or end with a NUL. All stay unchanged
/// during the call.
pub(super) unsafe fn model_at<'m>(model: *const RacklineModel) -> Result<Model<'m>, Failure> {
    // SAFETY: by the caller's promise.
    let model = unsafe { value(model, "the model") }?;
    // SAFETY: by the caller's promise.
    let name = unsafe { text(model.name, "the name of the model") }?;
    // SAFETY: by the caller's promise.
    let revision = unsafe { text(model.revision, "the revision of the model") }?;
    // SAFETY: by the caller's promise.
    let dtype = unsafe { text(model.dtype, "the dtype of the model") }?;
    Ok(Model {
        name,
        revision,
        dtype,
        layout_version: model.layout_version.max(1),
        block_tokens: model.block_tokens,
        tensor_parallel_rank: model.tensor_parallel_rank,
        tensor_parallel_size: model.tensor_parallel_size.max(1),
        layers: model.layers,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
    })
}

/// The fingerprint of a model, to be shown or logged. It is equal for the same model in every
/// process of every host, and in every language.
///
/// # Safety
/// `model` is null or points to a model whose texts are null or end with a NUL; `fingerprint` is
/// null or points to a number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_model_fingerprint(
    model: *const RacklineModel,
    fingerprint: *mut u64,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let fingerprint = unsafe { place(fingerprint, "the place for the fingerprint") }?;
        // SAFETY: by the caller's promise.
        let model = unsafe { model_at(model) }?;
        fingerprint.write(model.fingerprint().get());
        Ok(())
    })
}
