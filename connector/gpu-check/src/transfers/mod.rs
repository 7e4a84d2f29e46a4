//! Blocks of a GPU's memory through a pool, as engines move them: without waiting, behind the work
//! of their streams, and with nothing left behind.

mod layered;
mod on_gpu;
mod order;
mod pool;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cudarc::driver::CudaStream;
use rackline::cuda::{CudaError, CudaFigures, GpuError, PoolReach, Summing};
use rackline::{AsyncOptions, AsyncPool, BlockHash, NewBlock, SubmitError, SubmitErrorKind};

use crate::current::without_context;
use crate::device::{Device, is_mapped};
use layered::Engine;
use on_gpu::OnGpu;
use order::{
    a_capture_is_refused, behind_late_work, not_behind_later_work, not_behind_work_for_nothing,
};
use pool::{make_region, options};

const BLOCKS: u8 = 6;
const BLOCK_BYTES: usize = 2 << 20;

/// Publishes and fetches on a pool of its own in `directory`.
pub(crate) fn check(device: &Device, directory: &Path, gpu: usize) -> Result<String> {
    let folder = tempfile::Builder::new().prefix("rackline-gpu-check-").tempdir_in(directory)?;
    let path = folder.path().join("region");
    make_region(&path)?;
    let asked = AsyncOptions::new().with_publishes_by_layers(true);
    let pool = AsyncPool::attach(&path, 0, &asked)?;
    let session = pool.session(options()?)?;
    let engine = device.dma.context().new_stream()?;

    let refused = session.on_gpu(gpu, (&*engine).into());
    ensure!(matches!(refused, Err(GpuError::NotOpen { .. })), "a GPU that is not open is used");
    let computing = Engine { session: &session, stream: &engine, gpu };
    computing.check_not_open()?;
    let nobody = pool.gpu(usize::from(u16::MAX));
    ensure!(
        matches!(nobody, Err(GpuError::Cuda(CudaError::NoSuchGpu { .. }))),
        "GPU 65535 was opened"
    );
    let opened = without_context("opening a GPU", || Ok(pool.gpu(gpu)?))?;
    let again = pool.gpu(gpu)?;
    ensure!(again.reach() == opened.reach(), "a GPU that is open was opened anew");
    ensure!(
        matches!(opened.reach(), PoolReach::Bounced { .. })
            == matches!(device.dma.reach(), PoolReach::Bounced { .. }),
        "a pool is reached in another way than a file of this size: {:?}",
        opened.reach()
    );

    a_capture_is_refused(&session, &engine, gpu)?;
    behind_late_work(&session, &engine, gpu)?;
    let figures = opened.figures();
    let bytes = u64::from(BLOCKS) * BLOCK_BYTES as u64;
    let bounced = matches!(opened.reach(), PoolReach::Bounced { .. });
    let bounced_bytes = if bounced { 2 * bytes } else { 0 };
    let expected =
        CudaFigures { stored_bytes: bytes, loaded_bytes: bytes, bounced_bytes, ..figures };
    ensure!(figures == expected, "counted {figures:?} instead of {expected:?}");
    ensure!(figures.failed_payloads == 0, "payloads failed: {figures:?}");
    let summed = if *opened.summing() == Summing::ByGpu { 2 * bytes } else { 0 };
    ensure!(figures.gpu_summed_bytes == summed, "the GPU summed something else: {figures:?}");

    not_behind_later_work(&session, &engine, gpu)?;
    not_behind_work_for_nothing(&session, &engine, gpu)?;
    computing.check_layers()?;
    let before_closing = opened.figures().stored_bytes;

    // What is under way when the pool is closed is done; then nothing of it is left.
    let mut others = blocks(&engine)?;
    others.iter_mut().for_each(|block| block.hash = hash(block.depth + 100));
    let under_way = taken_up(session.on_gpu(gpu, (&*engine).into())?.publish(others))?;
    let (layered, _memory) = computing.begin()?;
    let late = session.on_gpu(gpu, (&*engine).into())?;
    let close = || {
        pool.close();
        Ok(())
    };
    without_context("closing the pool", close)?;
    let published = under_way.poll()?.context("what was taken up is done when a pool is closed")?;
    ensure!(published.report?.published() == usize::from(BLOCKS), "it was done, and failed");
    ensure!(!is_mapped(&path)?, "the pool is mapped after it was closed: the GPU has it still");
    // It has the last share of the context that the GPU was opened with.
    let finish = || {
        layered.layer_ready(0, (&*engine).into())?;
        Ok(layered.finish().wait()?.report?)
    };
    let report = without_context("the end of a publish by layers", finish)?;
    ensure!(report.is_none(), "published by layers after the pool was closed");
    let Err(refused) = late.publish(blocks(&engine)?) else {
        anyhow::bail!("a transfer was taken up after the pool was closed");
    };
    ensure!(refused.kind == SubmitErrorKind::Closed, "refused for another reason: {refused}");
    ensure!(refused.given.len() == usize::from(BLOCKS), "blocks were not given back");
    let refused = session.on_gpu(gpu, (&*engine).into());
    ensure!(matches!(refused, Err(GpuError::Closed)), "a GPU of a closed pool is used");
    ensure!(matches!(pool.gpu(gpu), Err(GpuError::Closed)), "a closed pool opens a GPU");
    ensure!(opened.figures().stored_bytes == before_closing + bytes, "figures of a closed pool");
    Ok(format!(
        "{BLOCKS} blocks behind late work of a stream, both ways, whole and by layers; closed and unmapped"
    ))
}

fn taken_up<T, G>(submitted: Result<T, SubmitError<G>>) -> Result<T> {
    submitted.map_err(|error| anyhow::anyhow!("{error}"))
}

fn blocks(stream: &Arc<CudaStream>) -> Result<Vec<NewBlock<OnGpu>>> {
    let block = |depth| Ok(NewBlock { hash: hash(depth), depth, bytes: OnGpu::new(stream)? });
    (0..u32::from(BLOCKS)).map(block).collect()
}

fn hash(depth: u32) -> BlockHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&depth.to_le_bytes());
    BlockHash::new(hash)
}
