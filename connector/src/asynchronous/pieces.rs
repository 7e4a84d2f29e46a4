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

/// Each piece with an engine of its own.
type Pieces<E, T> = VecDeque<(E, Vec<T>)>;

/// The pieces of `given`, of so many items.
fn pieces<E: AsyncEngine, T>(
    session: &AsyncSession<E>,
    given: Vec<T>,
    a_piece: usize,
) -> Result<Pieces<E, T>, SubmitError<Vec<T>>> {
    let count = given.len().div_ceil(a_piece).max(1);
    let engines = (0..count).map(|_| E::of(session.running(), session.order()));
    match engines.collect::<Result<Vec<_>, _>>() {
        Ok(engines) => Ok(engines.into_iter().zip(cut(given, a_piece)).collect()),
        Err(kind) => Err(kind.with(given)),
    }
}

/// What was given, of pieces that were not taken up.
fn whole<E, T>(pieces: Pieces<E, T>) -> Vec<T> {
    pieces.into_iter().flat_map(|(_, given)| given).collect()
}

pub(super) fn fetch<E: AsyncEngine, D: Destination<E>>(
    session: &AsyncSession<E>,
    blocks: Vec<MatchedBlock>,
    mut destinations: Vec<D>,
) -> Result<Completion<Fetched<D>>, SubmitError<Vec<D>>> {
    let call = session.of_call();
    let mut a_piece = blocks_a_piece(session);
    let is_whole = |to: &mut D| to.block_bytes() == call.options.block_bytes();
    // What is refused as a whole stays whole.
    if blocks.len() != destinations.len()
        || (destinations.len() > a_piece && !destinations.iter_mut().all(is_whole))
    {
        a_piece = usize::MAX;
    }
    let pieces = pieces(session, destinations, a_piece)?;
    let blocks = cut(blocks, a_piece);
    // The first piece with a block that failed: blocks behind it are not worth a copy.
    let ended_at = Mutex::new(usize::MAX);
    let end_at = move |number: usize| {
        let mut ended_at = ended_at.lock().unwrap_or_else(PoisonError::into_inner);
        *ended_at = number.min(*ended_at);
        *ended_at
    };
    session.running().submit_pieces(
        Lane::Fetch,
        session.besides(),
        pieces,
        move |desk, number, (engine, mut destinations): (E, Vec<D>)| {
            if number > end_at(usize::MAX) {
                return (None, destinations);
            }
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            let report = call.at(desk, &engine).fetch(&blocks[number], parts);
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
        whole,
    )
}

pub(super) fn publish<E: AsyncEngine, S: Source<E>>(
    session: &AsyncSession<E>,
    blocks: Vec<NewBlock<S>>,
) -> Result<Completion<Published<S>>, SubmitError<Vec<NewBlock<S>>>> {
    let call = session.of_call();
    let mut a_piece = blocks_a_piece(session);
    let is_whole = |block: &NewBlock<S>| block.bytes.block_bytes() == call.options.block_bytes();
    // What is refused as a whole stays whole.
    if blocks.len() > a_piece && !blocks.iter().all(is_whole) {
        a_piece = usize::MAX;
    }
    let pieces = pieces(session, blocks, a_piece)?;
    // What found no room waited for it. The pieces behind it do not wait once more.
    let found_no_room = AtomicBool::new(false);
    session.running().submit_pieces(
        Lane::Publish,
        session.besides(),
        pieces,
        move |desk, _, (engine, blocks): (E, Vec<NewBlock<S>>)| {
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
        whole,
    )
}
