//! Replays against a list that does the same, slowly and plainly.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use kv_cache::evict::policy::PolicyKind;

/// Requests of conversations that share a beginning and grow turn by turn, as text.
fn conversations() -> impl Strategy<Value = String> {
    let turn = (0u64..6, 0u64..12);
    proptest::collection::vec(turn, 1..60).prop_map(|turns| {
        let line = |(conversation, length): (u64, u64)| {
            let own = (1..length).map(|depth| (1000 * (conversation + 1) + depth).to_string());
            let ids: Vec<_> = std::iter::once("0".to_owned()).chain(own).collect();
            format!("{{\"hash_ids\": [{}]}}\n", ids.join(", "))
        };
        turns.into_iter().map(line).collect()
    })
}

/// LRU as a list, the next to leave in front.
fn plain_lru(trace: &Trace, capacity: usize, touch: Touch) -> Outcome {
    let mut list: Vec<u32> = Vec::new();
    let mut outcome = Outcome::default();
    for request in trace.requests() {
        outcome.requests += 1;
        outcome.block_refs += request.len() as u64;
        outcome.hits += request.iter().take_while(|block| list.contains(block)).count() as u64;
        let mut order = request.clone();
        if touch == Touch::LeafFirst {
            order.reverse();
        }
        for block in order {
            if list.contains(&block) {
                list.retain(|other| *other != block);
            } else if list.len() == capacity {
                list.remove(0);
                outcome.evictions += 1;
            }
            list.push(block);
        }
    }
    outcome
}

/// The most hits of all choices of what to keep after each request.
fn best_of_all_choices(trace: &Trace, capacity: u32) -> u64 {
    let mut reached = BTreeMap::from([(BTreeSet::new(), 0)]);
    for request in trace.requests() {
        let mut next = BTreeMap::new();
        for (kept, hits) in reached {
            let found = request.iter().take_while(|block| kept.contains(*block)).count() as u64;
            let all: Vec<u32> = kept.into_iter().chain(request.iter().copied()).collect();
            let all: BTreeSet<u32> = all.into_iter().collect();
            for choice in subsets(&all.into_iter().collect::<Vec<_>>(), capacity as usize) {
                let most: &mut u64 = next.entry(choice).or_default();
                *most = (*most).max(hits + found);
            }
        }
        reached = next;
    }
    reached.into_values().max().unwrap_or(0)
}

/// All subsets of at most `most` blocks.
fn subsets(blocks: &[u32], most: usize) -> Vec<BTreeSet<u32>> {
    let chosen = |bits: u32| {
        let is_in = |(place, block): (usize, &u32)| (bits & 1 << place != 0).then_some(*block);
        blocks.iter().enumerate().filter_map(is_in).collect::<BTreeSet<u32>>()
    };
    (0..1 << blocks.len()).map(chosen).filter(|choice| choice.len() <= most).collect()
}

/// Few requests of three prompts with one beginning.
fn few_requests() -> impl Strategy<Value = String> {
    let prompt = (0u64..3, 1u64..4);
    proptest::collection::vec(prompt, 1..9).prop_map(|prompts| {
        let line = |(prompt, length): (u64, u64)| {
            let own = (1..length).map(|depth| (10 * (prompt + 1) + depth).to_string());
            let ids: Vec<_> = std::iter::once("0".to_owned()).chain(own).collect();
            format!("{{\"hash_ids\": [{}]}}\n", ids.join(", "))
        };
        prompts.into_iter().map(line).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_optimum_is_the_best_of_all_choices(text in few_requests(), capacity in 1u32..6) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let outcome = optimum(&trace, Some(capacity)).unwrap();
        prop_assert_eq!(outcome.hits, best_of_all_choices(&trace, capacity));
    }

    #[test]
    fn no_policy_has_more_hits_than_the_optimum(
        text in conversations(),
        capacity in 1u32..40,
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        touch in proptest::sample::select(Touch::ALL.to_vec()),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let online = Simulation::new(&trace, Some(capacity), kind, touch).run();
        let best = optimum(&trace, Some(capacity)).unwrap();
        prop_assert!(online.hits <= best.hits);
        let unlimited = Simulation::new(&trace, None, kind, touch).run();
        prop_assert_eq!(optimum(&trace, None).unwrap().hits, unlimited.hits);
    }
}

proptest! {
    #[test]
    fn lru_is_what_a_list_does(
        text in conversations(),
        capacity in 1u32..40,
        touch in proptest::sample::select(Touch::ALL.to_vec()),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let outcome = Simulation::new(&trace, Some(capacity), PolicyKind::Lru, touch).run();
        prop_assert_eq!(outcome, plain_lru(&trace, capacity as usize, touch));
    }

    #[test]
    fn with_room_for_all_nothing_leaves_and_all_that_came_before_hits(
        text in conversations(),
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        touch in proptest::sample::select(Touch::ALL.to_vec()),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let unlimited = Simulation::new(&trace, None, kind, touch).run();
        prop_assert_eq!(unlimited.evictions, 0);
        prop_assert_eq!(unlimited.hits, trace.block_refs() - u64::from(trace.unique_blocks()));
        let all = trace.unique_blocks();
        prop_assert_eq!(Simulation::new(&trace, Some(all), kind, touch).run(), unlimited);
    }

    /// What came in and did not leave is what is there: never more than there is room for.
    #[test]
    fn blocks_are_conserved(
        text in conversations(),
        capacity in 1u32..40,
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        touch in proptest::sample::select(Touch::ALL.to_vec()),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let mut simulation = Simulation::new(&trace, Some(capacity), kind, touch);
        while simulation.step() {
            prop_assert!(simulation.resident_blocks() <= capacity);
        }
        let outcome = simulation.outcome();
        let came = outcome.evictions + u64::from(simulation.resident_blocks());
        prop_assert!(came >= trace.unique_blocks().into() && came <= outcome.block_refs);
        prop_assert!(outcome.hits <= trace.block_refs() - u64::from(trace.unique_blocks()));
        if outcome.evictions > 0 {
            prop_assert_eq!(simulation.resident_blocks(), capacity);
        }
    }
}

#[test]
fn there_is_no_optimum_where_a_block_has_two_parents() {
    // With room for one block S3-FIFO has a hit here, and evicting by the next use none.
    let text = "{\"hash_ids\": [1, 2]}\n{\"hash_ids\": [0]}\n{\"hash_ids\": [0, 1]}\n{\"hash_ids\": [2, 1]}";
    assert_eq!(optimum(&Trace::read(text.as_bytes()).unwrap(), Some(1)), None);
    let text = "{\"hash_ids\": [1, 2]}\n{\"hash_ids\": [2]}";
    assert_eq!(optimum(&Trace::read(text.as_bytes()).unwrap(), None), None);
}

#[test]
fn a_hit_needs_all_blocks_before_it() {
    // The second request throws block 0 out and leaves block 1, which is then useless.
    let trace = Trace::read(
        "{\"hash_ids\": [0, 1]}\n{\"hash_ids\": [2]}\n{\"hash_ids\": [0, 1]}".as_bytes(),
    );
    let trace = trace.unwrap();
    let hits = |touch| {
        let capacity = Capacity::Blocks(NonZeroU32::new(2).unwrap()).blocks(trace.unique_blocks());
        Simulation::new(&trace, capacity, PolicyKind::Lru, touch).run().hits
    };
    assert_eq!(hits(Touch::RootFirst), 0);
    assert_eq!(hits(Touch::LeafFirst), 1);
}
