//! Small runs with known figures, and what holds of every run.

use super::*;
use crate::figures::percentile;
use crate::machine::{BLOCK_TOKENS, Machine, Running};

/// Four layers of 1 ms each, whatever the context; the link brings a block in 64 us. The GPU has room
/// for `blocks` blocks.
fn profile(blocks: u64) -> Profile {
    let text = format!(
        "name = \"a test\"\nsource = \"none\"\nlayers = 4\nkv_bytes = 1000\nweight_bytes = 0\n\
         gpu_kv_bytes = {}\nlink_gb_per_s = 1.0\n\
         layer_us = [{{ context_tokens = 0, us = 1000.0 }}]\n",
        blocks * 64_000
    );
    Profile::read(&text).unwrap()
}

/// Requests of these lengths, which all come at once.
fn settings(blocks: u64, lengths: &[(u64, u64)]) -> Settings {
    Settings {
        lengths: Lengths::Traced(lengths.to_vec()),
        requests: lengths.len() as u64,
        load: 100.0,
        slo_scale: 1.0,
        ..Settings::new(profile(blocks))
    }
}

fn run(settings: &Settings, policy: PolicyKind) -> Figures {
    simulate(settings, policy, |_| {}).unwrap()
}

const ALL: [PolicyKind; 11] = [
    PolicyKind::Resident,
    PolicyKind::AllButCurrent,
    PolicyKind::Fixed,
    PolicyKind::FixedAnew,
    PolicyKind::Uniform,
    PolicyKind::Heuristic,
    PolicyKind::PlannerOnly,
    PolicyKind::FullSearch,
    PolicyKind::OursNoDeposit,
    PolicyKind::OursNoPause,
    PolicyKind::Ours,
];

#[test]
fn what_fits_runs_without_stalls_under_every_policy_but_one() {
    // Two blocks a layer.
    let settings = settings(1000, &[(100, 5)]);
    for policy in ALL {
        let figures = run(&settings, policy);
        assert_eq!((figures.tokens, figures.served, figures.rejected), (5, 1, 0));
        let expected = match policy {
            // Each layer is brought while no layer executes: 2 blocks of 64 us, 4 times.
            PolicyKind::AllButCurrent => 4.0 + 4.0 * 2.0 * 0.064,
            _ => 4.0,
        };
        assert!((figures.tbt_p99_ms.unwrap() - expected).abs() < 1e-9, "{policy:?}: {figures:?}");
        let kept = if policy == PolicyKind::AllButCurrent { 0.0 } else { 100.0 };
        assert!((figures.tbt_attainment_percent - kept).abs() < 1e-9, "{policy:?}");
    }
}

#[test]
fn offloaded_layers_cost_what_their_placement_costs() {
    // One request of 20 blocks a layer: 80 blocks, and room for 60.
    let machine = Machine::new(profile(60), 1);
    let one = [Running { id: 0, tokens: 19 * u64::from(BLOCK_TOKENS) }];
    // Layer 4 is offloaded: 60 blocks and a buffer of 20 do not fit. Layers 2 and 4: 40 and 20 do. The
    // link brings 15.6 blocks in a layer: layer 2 waits for what is missing of its 20, and so does 4.
    let placed = kv_cache::placement::Placement::every(2, 4);
    let iteration = machine.iteration(&one, &[placed]).unwrap();
    assert!(iteration.fits && iteration.moved_blocks == 40);
    assert_eq!(iteration.stall_ns, 2 * (20 * 64_000 - 1_000_000));
    let settings = settings(60, &[(19 * 64, 40)]);
    for policy in [PolicyKind::FixedAnew, PolicyKind::Heuristic, PolicyKind::PlannerOnly] {
        let figures = run(&settings, policy);
        assert!((figures.tbt_p50_ms.unwrap() - 4.56).abs() < 1e-9, "{policy:?}: {figures:?}");
    }
    // Nothing else is possible, and nothing offloaded does not fit.
    let figures = run(&settings, PolicyKind::Resident);
    assert_eq!((figures.rejected, figures.tbt_p50_ms), (1, None), "no token came");
}

#[test]
fn requests_wait_until_there_is_room() {
    // 40 blocks each, room for 50: one after another, of 10 tokens in 4 ms each.
    let settings = settings(50, &[(9 * 64 + 1, 10), (9 * 64 + 1, 10)]);
    let figures = run(&settings, PolicyKind::Resident);
    assert_eq!((figures.served, figures.pauses), (2, 0));
    // The first tokens come after 4 ms and after 44 ms; arrivals are less than a millisecond apart.
    assert!((22.0..=24.0).contains(&figures.mean_wait_ms), "{figures:?}");
}

#[test]
fn a_run_says_the_same_again_and_computes_every_token_once() {
    let mut settings = Settings::new(Profile::named("a6000-llama-8b").unwrap());
    settings.requests = 40;
    for arrival_cv in [0.5, 4.0] {
        settings.arrival_cv = arrival_cv;
        let wanted = run(&settings, PolicyKind::Resident);
        for policy in PolicyKind::COMPARED.into_iter().chain(PolicyKind::ABLATION) {
            let mut last = 0;
            let figures = simulate(&settings, policy, |served| last = served).unwrap();
            assert_eq!(figures, run(&settings, policy));
            assert_eq!((figures.served, figures.rejected, last), (40, 0, 40), "{policy:?}");
            assert_eq!(figures.tokens, wanted.tokens);
            assert!(figures.tbt_p50_ms <= figures.tbt_p95_ms);
            assert!(figures.tbt_p95_ms <= figures.tbt_p99_ms);
        }
    }
    let other = Settings { seed: 2, ..settings.clone() };
    assert_ne!(run(&other, PolicyKind::Resident), run(&settings, PolicyKind::Resident));
}

#[test]
fn a_promise_that_is_easier_is_kept_more_often() {
    let mut settings = Settings::new(Profile::named("a6000-llama-8b").unwrap());
    settings.requests = 60;
    for policy in [PolicyKind::Resident, PolicyKind::FixedAnew, PolicyKind::Heuristic] {
        let mut before = 0.0;
        for slo_scale in [0.5, 1.0, 2.0, 8.0] {
            settings.slo_scale = slo_scale;
            let kept = run(&settings, policy).tbt_attainment_percent;
            assert!(kept >= before, "{policy:?} {slo_scale}");
            before = kept;
        }
    }
}

#[test]
fn ours_keeps_more_promises_than_other_policies_that_offload() {
    let mut settings = Settings::new(Profile::named("a6000-llama-8b").unwrap());
    settings.requests = 60;
    let ours = run(&settings, PolicyKind::Ours);
    for policy in &PolicyKind::COMPARED[1..PolicyKind::COMPARED.len() - 1] {
        let other = run(&settings, *policy);
        assert!(ours.tbt_attainment_percent > other.tbt_attainment_percent, "{policy:?}");
        assert!(ours.tokens_per_s > other.tokens_per_s, "{policy:?}");
    }
}

#[test]
fn a_larger_or_shared_machine_is_faster() {
    let profile = Profile::named("h100-llama-8b").unwrap();
    assert_eq!(profile.layer_ns(0, 1), 149_800);
    assert_eq!(profile.layer_ns(500_000, 1), 761_150);
    assert_eq!(profile.layer_ns(2_000_000, 1), 2_595_200, "beyond the last point");
    assert_eq!(profile.layer_ns(0, 2), 74_900);
    assert_eq!(profile.block_ns(64, 1), 5243);
    assert_eq!(profile.block_ns(64, 4), 1311);
    assert_eq!(profile.gpu_blocks(64, 1), 55_940_000_000 / 262_144);
    // Each rank has half of the weights, and half of each block.
    assert_eq!(profile.gpu_blocks(64, 2), 2 * (55_940_000_000 + 8_030_000_000) / 262_144);
    for name in Profile::NAMES {
        assert!(!Profile::named(name).unwrap().source.is_empty());
    }
}

#[test]
fn profiles_and_traces_that_are_none_are_refused() {
    let good = include_str!("../profiles/a6000-llama-8b.toml");
    for (from, to, why) in [
        ("layers = 32", "layers = 0", "1 to 1024"),
        ("kv_bytes = 4096", "kv_bytes = 0", "kv_bytes"),
        ("link_gb_per_s = 25.0", "link_gb_per_s = nan", "link_gb_per_s"),
        ("us = 653.5", "us = -1.0", "layer_us"),
        ("us = 653.5", "us = 9000.0", "ascend"),
        ("source", "origin", "unknown field"),
    ] {
        let error = Profile::read(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(Profile::named("b200").unwrap_err().to_string().contains("h100-llama-8b"));
    let read = |text: &str| Lengths::read(text.as_bytes()).map_err(|error| error.to_string());
    let one = "{\"input_length\": 7, \"output_length\": 3, \"hash_ids\": []}\n\n";
    let short = "{\"input_length\": 7, \"output_length\": 1}\n";
    assert_eq!(read(&[one, short].concat()), Ok((Lengths::Traced(vec![(7, 3)]), 1)));
    assert!(read(short).unwrap_err().contains("two tokens"));
    assert!(read(&[one, "{}"].concat()).unwrap_err().starts_with("line 3 is no request"));
    let long = "{\"input_length\": 18446744073709551615, \"output_length\": 9}";
    assert!(read(long).unwrap_err().contains("at most"));
}

#[test]
fn settings_that_are_none_are_refused() {
    let good = settings(1000, &[(100, 5)]);
    for bad in [
        Settings { batch_max: 0, ..good.clone() },
        Settings { ranks: 0, ..good.clone() },
        Settings { load: 0.0, ..good.clone() },
        Settings { slo_scale: f64::NAN, ..good.clone() },
        Settings { arrival_cv: -1.0, ..good.clone() },
        Settings { requests: 0, ..good },
    ] {
        let error = simulate(&bad, PolicyKind::Ours, |_| {}).unwrap_err();
        assert!(matches!(error, SimulateError::Setting { .. }), "{error}");
    }
}

#[test]
fn lengths_and_arrivals_have_their_means() {
    let lengths = Lengths::Drawn { prompt_tokens: 8000, output_tokens: 256 };
    for arrival_cv in [0.5, 1.0, 3.0] {
        let (requests, interval_ns, seed) = (20_000, 1_000_000, 7);
        let drawn = Workload { requests, lengths: lengths.clone(), interval_ns, arrival_cv, seed };
        let drawn = drawn.requests();
        let mean =
            |of: fn(&Request) -> u64| drawn.iter().map(of).sum::<u64>() as f64 / drawn.len() as f64;
        assert!((mean(|it| it.prompt_tokens) / 8000.0 - 1.0).abs() < 0.03);
        assert!((mean(|it| it.output_tokens) / 256.0 - 1.0).abs() < 0.03);
        let last = drawn[drawn.len() - 1].arrival_ns as f64;
        assert!((last / 20_000e6 - 1.0).abs() < 0.08, "{arrival_cv}: {last}");
    }
    let of_four = [1, 50, 99, 100].map(|it| percentile(&[10, 20, 30, 40], 0, it).unwrap());
    assert_eq!(of_four, [10, 20, 40, 40]);
    // As many times did not end.
    let of_eight = [1, 50, 51].map(|it| percentile(&[10, 20, 30, 40], 4, it));
    assert_eq!(of_eight, [Some(10), Some(40), None]);
    assert_eq!(percentile(&[], 0, 50), None);
}

#[test]
fn the_search_of_distances_gives_little_away() {
    let mut settings = Settings::new(Profile::named("a6000-llama-8b").unwrap());
    settings.requests = 20;
    let series = Figure::Search.run(&settings, || ()).unwrap();
    let [pruned, full] = [0, 1].map(|at: usize| series[at].figures[1].tokens_per_s);
    assert!(full >= pruned * 0.999 && full <= pruned * 1.1, "{pruned} {full}");
}
