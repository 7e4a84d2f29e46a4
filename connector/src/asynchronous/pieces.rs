//! Fetches and publishes in pieces: whole blocks that follow one another, a few megabytes a piece.
//!
//! The pieces of a request are work for several threads, and a short request does not wait for all of a
//! long one before it (`turns`). What comes of the pieces is told as of one call: a prefix is valid up to
//! the first block that failed in any of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kv_cache::MatchedBlock;

use super::turns::Lane;
use super::{
    AsyncEngine, AsyncSession, Completion, Destination, Fetched, Published, Source, SubmitError,
};
use crate::block::NewBlock;
use crate::session::{FetchReport, PublishOutcome, PublishReport, SessionError};

/// Bytes of a piece, about: a millisecond or two of copying, beside which its own descriptors and fences
/// cost little. A longer block is a piece of its own.
const PIECE_BYTES: u64 = if cfg!(test) { 32 << 10 } else { 8 << 20 };

/// Blocks of a piece.
fn blocks_a_piece<E: AsyncEngine>(session: &AsyncSession<E>) -> usize {
    let blocks = PIECE_BYTES / session.options().block_bytes().max(1);
    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
    // Each begins with a block of the first of the sessions that take turns.
    (blocks - blocks % session.turns()).max(session.turns())
}

/// Cuts `all` into pieces of so many.
fn cut<T>(all: Vec<T>, a_piece: usize) -> Vec<Vec<T>> {
    if all.len() <= a_piece {
        return vec![all];
    }
    let pieces = all.len().div_ceil(a_piece);
    let mut all = all.into_iter();
    (0..pieces).map(|_| all.by_ref().take(a_piece).collect()).collect()
}

struct FetchPiece<E, D> {
    engine: E,
    blocks: Vec<MatchedBlock>,
    destinations: Vec<D>,
}

pub(super) fn fetch<E: AsyncEngine, D: Destination<E>>(
    session: &AsyncSession<E>,
    blocks: Vec<MatchedBlock>,
    mut destinations: Vec<D>,
) -> Result<Completion<Fetched<D>>, SubmitError<Vec<D>>> {
    let (running, call) = (session.running(), session.of_call());
    let mut a_piece = blocks_a_piece(session);
    let is_whole = |to: &mut D| to.block_bytes() == call.options.block_bytes();
    // What is refused as a whole stays whole.
    if blocks.len() != destinations.len()
        || (destinations.len() > a_piece && !destinations.iter_mut().all(is_whole))
    {
        a_piece = usize::MAX;
    }
    let mut pieces = VecDeque::new();
    let mut refused: Option<(_, Vec<D>)> = None;
    for (blocks, destinations) in cut(blocks, a_piece).into_iter().zip(cut(destinations, a_piece)) {
        if let Some((_, given)) = &mut refused {
            given.extend(destinations);
            continue;
        }
        match E::of(running, session.order()) {
            Ok(engine) => pieces.push_back(FetchPiece { engine, blocks, destinations }),
            Err(kind) => {
                let mut given = all_destinations(std::mem::take(&mut pieces));
                given.extend(destinations);
                refused = Some((kind, given));
            }
        }
    }
    if let Some((kind, given)) = refused {
        return Err(kind.with(given));
    }
    // The first piece with a block that failed: blocks behind it are not worth a copy.
    let ended_at = Mutex::new(usize::MAX);
    let end_at = move |number: usize| {
        let mut ended_at = ended_at.lock().unwrap_or_else(PoisonError::into_inner);
        *ended_at = number.min(*ended_at);
        *ended_at
    };
    running.submit_pieces(
        Lane::Fetch,
        session.besides(),
        pieces,
        move |desk, number, FetchPiece { engine, blocks, mut destinations }| {
            if number > end_at(usize::MAX) {
                return (None, destinations);
            }
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            let report = call.at(desk, &engine).fetch(&blocks, parts);
            if !report.as_ref().is_ok_and(|report| report.stop().is_none()) {
                end_at(number);
            }
            (Some(report), destinations)
        },
        |results| {
            let (reports, destinations): (Vec<_>, Vec<_>) = results.into_iter().unzip();
            let report = FetchReport::of_pieces(reports.into_iter().map_while(|report| report));
            Fetched { report, destinations: destinations.into_iter().flatten().collect() }
        },
        all_destinations,
    )
}

fn all_destinations<E, D>(pieces: VecDeque<FetchPiece<E, D>>) -> Vec<D> {
    pieces.into_iter().flat_map(|piece| piece.destinations).collect()
}

struct PublishPiece<E, S> {
    engine: E,
    blocks: Vec<NewBlock<S>>,
}

pub(super) fn publish<E: AsyncEngine, S: Source<E>>(
    session: &AsyncSession<E>,
    blocks: Vec<NewBlock<S>>,
) -> Result<Completion<Published<S>>, SubmitError<Vec<NewBlock<S>>>> {
    let (running, call) = (session.running(), session.of_call());
    let mut a_piece = blocks_a_piece(session);
    let is_whole = |block: &NewBlock<S>| block.bytes.block_bytes() == call.options.block_bytes();
    // What is refused as a whole stays whole.
    if blocks.len() > a_piece && !blocks.iter().all(is_whole) {
        a_piece = usize::MAX;
    }
    let mut pieces = VecDeque::new();
    let mut refused: Option<(_, Vec<NewBlock<S>>)> = None;
    for blocks in cut(blocks, a_piece) {
        if let Some((_, given)) = &mut refused {
            given.extend(blocks);
            continue;
        }
        match E::of(running, session.order()) {
            Ok(engine) => pieces.push_back(PublishPiece { engine, blocks }),
            Err(kind) => {
                let mut given = all_blocks(std::mem::take(&mut pieces));
                given.extend(blocks);
                refused = Some((kind, given));
            }
        }
    }
    if let Some((kind, given)) = refused {
        return Err(kind.with(given));
    }
    // What found no room waited for it. The pieces behind it do not wait once more.
    let found_no_room = AtomicBool::new(false);
    running.submit_pieces(
        Lane::Publish,
        session.besides(),
        pieces,
        move |desk, _, PublishPiece { engine, blocks }| {
            let mut call = call.clone();
            if found_no_room.load(Ordering::Relaxed) {
                call.options = call.options.with_chunk_timeout(Duration::ZERO);
            }
            let parts = blocks.iter().map(|NewBlock { hash, depth, bytes }| NewBlock {
                hash: *hash,
                depth: *depth,
                bytes: bytes.parts(),
            });
            let report = call.at(desk, &engine).publish(&parts.collect::<Vec<_>>());
            let refused = |outcome: &PublishOutcome| matches!(outcome, PublishOutcome::Refused(_));
            if report.as_ref().is_ok_and(|report| report.outcomes().iter().any(refused)) {
                found_no_room.store(true, Ordering::Relaxed);
            }
            (report, blocks)
        },
        |results| {
            let (reports, blocks): (Vec<_>, Vec<_>) = results.into_iter().unzip();
            let report: Result<Vec<_>, SessionError> = reports.into_iter().collect();
            let report = report.map(PublishReport::of_pieces);
            Published { report, blocks: blocks.into_iter().flatten().collect() }
        },
        all_blocks,
    )
}

fn all_blocks<E, S>(pieces: VecDeque<PublishPiece<E, S>>) -> Vec<NewBlock<S>> {
    pieces.into_iter().flat_map(|piece| piece.blocks).collect()
}
