//! The most hits that any cache of some size could have: it knows the whole trace beforehand.

use std::collections::BTreeSet;

use super::simulation::Outcome;
use super::trace::Trace;

/// The most hits that a cache of `capacity` blocks can have on `trace`, and what it evicts for them;
/// a capacity of `None` is no limit. The tests compare it with all choices.
///
/// `None` where a name stands behind two different ones, or in the first place and behind another: a name
/// is to stand for a block with all before it, and what follows is no proof otherwise.
///
/// After each request the cache has the blocks of the past that are used again soonest, and of those
/// that are used again at the same time the ones nearer to the root. Unlike a [`Simulation`], it does
/// not take in what is never used again, which counts as no eviction.
///
/// *Why that is best*: a block between two of its uses is an interval of requests. Each interval that is
/// kept to its end is a hit. As many as possible are to be kept, with at most `capacity` at any time. Of
/// intervals that overlap, dropping the one that ends last leaves the most room for later ones. A parent
/// is used whenever its children are, so its interval ends no later: a child is dropped first, and
/// what is kept of a prompt is always its beginning.
///
/// [`Simulation`]: super::Simulation
///
/// # Panics
/// When the capacity is 0.
#[must_use]
pub fn optimum(trace: &Trace, capacity: Option<u32>) -> Option<Outcome> {
    assert_ne!(capacity, Some(0), "a cache holds at least one block");
    if !each_has_one_parent(trace) {
        return None;
    }
    let most = capacity.map_or(usize::MAX, |blocks| blocks as usize);
    let next_uses = next_uses(trace);
    // Of each block that is in the cache: its next use, and its depth.
    let mut kept: Vec<Option<(usize, usize)>> = vec![None; trace.unique_blocks() as usize];
    let mut by_next_use = BTreeSet::new();
    let mut outcome = Outcome::default();
    for (request, next_uses) in trace.requests().iter().zip(&next_uses) {
        outcome.requests += 1;
        outcome.block_refs += request.len() as u64;
        let hits = request.iter().take_while(|block| kept[**block as usize].is_some());
        outcome.hits += hits.count() as u64;
        for (depth, (block, next_use)) in request.iter().zip(next_uses).enumerate() {
            let next = next_use.map(|request| (request, depth));
            let before = std::mem::replace(&mut kept[*block as usize], next);
            if let Some((request, depth)) = before {
                by_next_use.remove(&(request, depth, *block));
            }
            if let Some((request, depth)) = next {
                by_next_use.insert((request, depth, *block));
            }
        }
        while by_next_use.len() > most {
            if let Some((_, _, block)) = by_next_use.pop_last() {
                kept[block as usize] = None;
                outcome.evictions += 1;
            }
        }
    }
    Some(outcome)
}

/// Whether each block is always behind the same one, or always the first.
fn each_has_one_parent(trace: &Trace) -> bool {
    let mut parents: Vec<Option<Option<u32>>> = vec![None; trace.unique_blocks() as usize];
    trace.requests().iter().all(|request| {
        let before = std::iter::once(None).chain(request.iter().copied().map(Some));
        request
            .iter()
            .zip(before)
            .all(|(block, parent)| *parents[*block as usize].get_or_insert(parent) == parent)
    })
}

/// The request that uses each block of each request next.
fn next_uses(trace: &Trace) -> Vec<Vec<Option<usize>>> {
    let mut next: Vec<Option<usize>> = vec![None; trace.unique_blocks() as usize];
    let of_request = |(number, request): (usize, &Vec<u32>)| {
        let uses = request.iter().map(|block| next[*block as usize]).collect();
        for block in request {
            next[*block as usize] = Some(number);
        }
        uses
    };
    let mut uses: Vec<_> = trace.requests().iter().enumerate().rev().map(of_request).collect();
    uses.reverse();
    uses
}
