use std::collections::HashSet;

use super::*;
use crate::Trace;

fn options(workload: Workload, seed: u64) -> TractOptions {
    TractOptions { workload, seed, requests: 2000, documents: 200, zipf: 1.0, rate: 2.0 }
}

const WORKLOADS: [Workload; 3] = [Workload::A, Workload::B, Workload::C];

#[test]
fn lengths_have_the_moments_of_the_table_within_three_percent() {
    for workload in WORKLOADS {
        for seed in 0..10 {
            let trace = Tract::new(&options(workload, seed)).unwrap();
            let (what, requests) = (format!("{workload:?}, seed {seed}"), &trace.requests);
            assert!(
                trace.compared().iter().all(Compared::is_near),
                "{what}: {:?}",
                trace.compared()
            );
            // The unique tokens, from the trace alone: behind the last block that another request has.
            let mut uses = std::collections::HashMap::<u64, u64>::new();
            for id in requests.iter().flat_map(|it| &it.hash_ids) {
                *uses.entry(*id).or_default() += 1;
            }
            let shared = |it: &TractRequest| {
                it.hash_ids.iter().take_while(|id| uses[*id] > 1).count() as u64
            };
            let often = requests.iter().filter(|it| shared(it) > TOPIC_BLOCKS);
            assert!(often.count() > requests.len() / 4, "{what}: little is shared");
            assert!(requests.is_sorted_by_key(|it| it.timestamp), "{what}");
        }
    }
}

#[test]
fn unique_parts_have_the_moments_of_the_table() {
    for workload in WORKLOADS {
        for seed in 0..10 {
            // With one request a document at most, the shared part is what the document has.
            let trace = Tract::new(&options(workload, seed)).unwrap();
            let mut texts = HashSet::new();
            let mut unique = Vec::new();
            for request in &trace.requests {
                let known = request.hash_ids.iter().take_while(|id| texts.contains(*id)).count();
                texts.extend(request.hash_ids.iter().copied());
                unique.push((request, known as u64));
            }
            // Of documents that were used as far before: what is not shared is unique.
            let repeated = unique.iter().filter(|(_, known)| *known > TOPIC_BLOCKS);
            let tokens: Vec<u64> =
                repeated.map(|(it, known)| it.input_length - known * BLOCK_TOKENS).collect();
            #[expect(clippy::cast_precision_loss, reason = "lengths")]
            let mean = tokens.iter().sum::<u64>() as f64 / tokens.len() as f64;
            let wanted = workload.unique().mean;
            assert!((mean / wanted - 1.0).abs() < 0.15, "{workload:?}, {seed}: {mean}, {wanted}");
        }
    }
}

/// TRACE-T4.
#[test]
fn hits_are_those_of_a_cache_without_bounds() {
    for workload in WORKLOADS {
        for seed in 0..5 {
            let trace = Tract::new(&options(workload, seed)).unwrap();
            let (mut cached, mut hits, mut blocks) = (HashSet::new(), 0, 0);
            for request in &trace.requests {
                hits += request.hash_ids.iter().take_while(|id| cached.contains(*id)).count();
                blocks += request.hash_ids.len();
                cached.extend(request.hash_ids.iter().copied());
                assert_eq!(request.hash_ids.len() as u64, request.input_length / BLOCK_TOKENS);
            }
            assert_eq!((trace.hits, trace.blocks), (hits as u64, blocks as u64));
            assert!(trace.hits * 3 > trace.blocks, "{workload:?}: {hits} of {blocks}");
        }
    }
}

#[test]
fn equal_seeds_make_equal_traces_which_the_replay_reads() {
    let of = |seed| Tract::new(&options(Workload::A, seed)).unwrap();
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
    let lines: Vec<String> =
        of(7).requests.iter().map(|it| serde_json::to_string(it).unwrap()).collect();
    let trace = Trace::read(lines.join("\n").as_bytes()).unwrap();
    assert_eq!(trace.requests().len(), 2000);
}

#[test]
fn lengths_that_are_not_reached_are_told() {
    let one = TractOptions { documents: 1, ..options(Workload::A, 1) };
    let trace = Tract::new(&one).unwrap();
    let [prompts, answers] = trace.compared();
    assert!(!prompts.is_near() && answers.is_near(), "{prompts:?}, {answers:?}");
}

#[test]
fn what_makes_no_trace_is_refused() {
    let of = |change: fn(&mut TractOptions)| {
        let mut options = options(Workload::A, 1);
        change(&mut options);
        Tract::new(&options).unwrap_err().to_string()
    };
    assert!(of(|it| it.requests = 99).contains("ask for 100"));
    assert!(of(|it| it.documents = 0).contains("no document"));
    assert!(of(|it| it.zipf = -1.0).contains("exponent"));
    assert!(of(|it| it.zipf = f64::NAN).contains("exponent"));
    assert!(of(|it| it.rate = 0.0).contains("above 0"));
    assert!(of(|it| it.rate = f64::INFINITY).contains("above 0"));
}
