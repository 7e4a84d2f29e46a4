//! Runs whose figures can be counted by hand, and laws that all runs obey.

use std::num::{NonZeroU16, NonZeroU32};

use kv_drive::policy::{AdmissionKind, usual_watermarks};
use proptest::prelude::*;
use rackline_replay::{PoolShape, TierOptions, Trace};

use super::*;

const MS: u64 = 1_000_000;
const BLOCK_TOKENS: u64 = 10;

/// 1 ms for a token of a prompt, 10 ms for an iteration.
fn profile(batch_max: u32) -> Profile {
    Profile {
        name: "test".to_owned(),
        source: "none".to_owned(),
        kv_bytes: 1,
        prefill: Prefill { base_us: 0.0, token_us: 1000.0, pair_ns: 0.0 },
        decode: Decode {
            base_us: 10_000.0,
            request_us: 0.0,
            context_token_us: 0.0,
            batch_max,
            kv_tokens_max: 1_000_000,
        },
    }
}

/// A block passes a link in 1 ms.
fn settings(rack: Rack, chunks: u32, batch_max: u32) -> Settings {
    let pool = PoolShape {
        nodes: NonZeroU16::new(rack.nodes()).unwrap(),
        workers_per_node: NonZeroU16::new(rack.workers_per_node()).unwrap(),
        chunks,
        chunk_blocks: NonZeroU32::new(1).unwrap(),
    };
    Settings {
        rack,
        pool,
        profile: profile(batch_max),
        links: Links {
            name: "test".to_owned(),
            source: "none".to_owned(),
            device: Device::new(1.0, 0).unwrap(),
            memory: None,
            network: Device::new(0.5, 0).unwrap(),
            local: Device::new(2.0, 0).unwrap(),
            rpc_ns: 7 * MS,
            drives: None,
        },
        system: System::Rackline,
        block_bytes: MS,
        software: Software::default(),
        drives: None,
        kill: None,
    }
}

fn simulate(settings: &Settings, workload: &Workload) -> Vec<Served> {
    super::simulate(settings, workload).served
}

fn request(at_ms: u64, output_tokens: u64, blocks: std::ops::Range<u32>) -> Request {
    let prompt_tokens = (blocks.len() as u64 * BLOCK_TOKENS).max(1);
    Request { at_ns: at_ms * MS, prompt_tokens, output_tokens, blocks: blocks.collect() }
}

fn workload(requests: Vec<Request>) -> Workload {
    let unique_blocks = requests.iter().flat_map(|it| &it.blocks).max().map_or(0, |it| it + 1);
    Workload { requests, block_tokens: BLOCK_TOKENS, unique_blocks }
}

fn one_each() -> Rack {
    Rack::new(2, 1, 1).unwrap()
}

#[test]
fn the_stages_of_a_request_follow_each_other() {
    let served = simulate(&settings(one_each(), 100, 8), &workload(vec![request(5, 3, 0..4)]));
    let times = served[0].times;
    assert_eq!((times.compute_ns, times.write_ns), (40 * MS, 4 * MS));
    assert_eq!((times.decode_read_ns, times.first_token_ns), (4 * MS, 10 * MS));
    assert_eq!(times.decode_ns, 20 * MS);
    assert_eq!((served[0].ttft_ns, served[0].latency_ns), (58 * MS, 78 * MS));
    assert_eq!((served[0].hits, served[0].published, served[0].lost), (0, 4, 0));
    assert_eq!(served[0].token_ns(), Some(10 * MS));
}

#[test]
fn what_was_computed_before_is_read() {
    let requests = vec![request(0, 1, 0..4), request(1000, 1, 0..6)];
    let served = simulate(&settings(one_each(), 100, 8), &workload(requests));
    assert_eq!((served[1].hits, served[1].published), (4, 2));
    let times = served[1].times;
    assert_eq!((times.read_ns, times.compute_ns), (4 * MS, 20 * MS));
    assert_eq!((times.write_ns, times.decode_read_ns), (2 * MS, 6 * MS));
}

/// A block takes 4 ms from a drive and 2 ms to it, 100 ms after it was published.
fn with_drives(settings: Settings, room_blocks: Option<u64>) -> Settings {
    let drives =
        DriveLinks { read: Device::new(0.25, 0).unwrap(), write: Device::new(0.5, 0).unwrap() };
    let options = TierOptions {
        admission: AdmissionKind::All,
        backup_age_ms: 100,
        block_bytes: MS,
        room_bytes: None,
        watermarks: usual_watermarks(),
    };
    let room_bytes = room_blocks.map(|blocks| blocks * options.extent_bytes());
    let links = Links { drives: Some(drives), ..settings.links };
    let drives = Some(TierOptions { room_bytes, ..options });
    Settings { links, drives, system: System::RacklineDrives, ..settings }
}

#[test]
fn what_left_a_small_pool_comes_back_from_a_drive() {
    let requests = vec![
        request(0, 1, 0..4),
        request(500, 1, 4..8),
        request(1000, 1, 0..4),
        request(1000, 1, 0..5),
    ];
    let small = settings(one_each(), 4, 8);
    let run = super::simulate(&with_drives(small.clone(), None), &workload(requests.clone()));
    let [_, _, again, last] = &run.served[..] else { panic!("four requests") };
    assert_eq!((again.hits, again.from_drives, again.published), (4, 4, 0));
    let times = again.times;
    assert_eq!((times.restore_ns, times.read_ns, times.compute_ns), (16 * MS, 4 * MS, MS));
    // The pool has four of five by then, and no room for the other one.
    assert_eq!((last.hits, last.from_drives, last.times.restore_ns), (4, 0, 4 * MS));
    // Once each.
    assert_eq!(run.written_to_drives, 8);
    let without = simulate(&small, &workload(requests));
    assert_eq!((without[2].hits, without[2].from_drives), (0, 0));
}

#[test]
fn a_restore_under_way_is_waited_for_and_not_begun_again() {
    let requests = vec![
        request(0, 1, 0..4),
        request(500, 1, 4..8),
        request(1000, 1, 0..4),
        request(1004, 1, 0..4),
    ];
    let two = settings(Rack::new(1, 2, 1).unwrap(), 4, 8);
    let served = simulate(&with_drives(two, None), &workload(requests));
    let waited = |it: &Served| (it.hits, it.from_drives, it.times.restore_ns / MS);
    assert_eq!(waited(&served[2]), (4, 4, 16));
    assert_eq!(waited(&served[3]), (4, 0, 12));
}

#[test]
fn a_block_that_left_before_its_backup_is_lost() {
    let requests = vec![request(0, 1, 0..4), request(90, 1, 4..8), request(1000, 1, 0..4)];
    let served = simulate(&with_drives(settings(one_each(), 4, 8), None), &workload(requests));
    assert_eq!((served[2].hits, served[2].from_drives), (0, 0));
}

#[test]
fn backups_take_the_link_of_their_host() {
    let write_ns = |at_ns| {
        let second = Request { at_ns, ..request(0, 1, 4..8) };
        let settings = with_drives(settings(one_each(), 100, 8), None);
        simulate(&settings, &workload(vec![request(0, 1, 0..4), second]))[1].times.write_ns
    };
    // The first backup reads from 144 to 145 ms. A write begins 40 ms after its request.
    assert_eq!((write_ns(104 * MS + MS / 2), write_ns(200 * MS)), (4 * MS + MS / 2, 4 * MS));
}

#[test]
fn without_reuse_nothing_is_found() {
    let requests = vec![request(0, 1, 0..4), request(1000, 1, 0..6)];
    let apart = workload(requests).without_reuse().unwrap();
    assert_eq!(apart.unique_blocks, 10);
    let served = simulate(&settings(one_each(), 100, 8), &apart);
    assert_eq!((served[1].hits, served[1].published, served[1].lost), (0, 6, 0));
}

#[test]
fn prompts_wait_for_a_prefill_worker_in_the_order_in_which_they_arrive() {
    let requests = vec![request(0, 1, 0..2), request(1, 1, 2..4), request(2, 1, 4..6)];
    let served = simulate(&settings(one_each(), 100, 8), &workload(requests));
    // Each takes 20 ms to compute and 2 ms to write.
    let queues: Vec<_> = served.iter().map(|it| it.times.queue_ns / MS).collect();
    assert_eq!(queues, [0, 21, 42]);
}

#[test]
fn workers_of_a_host_share_its_link() {
    // Both prefill workers and the decode worker are on one node.
    let rack = Rack::new(1, 2, 1).unwrap();
    let requests = vec![request(0, 1, 0..4), request(0, 1, 4..8)];
    let served = simulate(&settings(rack, 100, 8), &workload(requests));
    assert_eq!((served[0].times.write_ns, served[1].times.write_ns), (4 * MS, 8 * MS));
}

#[test]
fn all_hosts_share_the_memory_itself() {
    let rack = Rack::new(3, 2, 1).unwrap();
    let requests = workload(vec![request(0, 1, 0..4), request(0, 1, 4..8)]);
    let mut settings = settings(rack, 100, 8);
    let writes = |settings: &Settings| -> Vec<u64> {
        simulate(settings, &requests).iter().map(|it| it.times.write_ns / MS).collect()
    };
    assert_eq!(writes(&settings), [4, 4]);
    settings.links.memory = Some(Device::new(1.25, 0).unwrap());
    // The second waits until the memory has taken the first.
    assert_eq!(writes(&settings), [4, 6]);
}

#[test]
fn a_prompt_waits_for_a_slot_when_the_batch_is_full() {
    let requests = vec![request(0, 10, 0..1), request(0, 1, 1..2)];
    let served = simulate(&settings(one_each(), 100, 1), &workload(requests));
    assert_eq!(served[0].latency_ns, (10 + 1 + 1 + 100) * MS);
    assert_eq!(served[1].times.decode_queue_ns, served[0].latency_ns - (20 + 2) * MS);
}

#[test]
fn what_the_pool_has_no_room_for_is_computed_by_the_decode_worker() {
    let served = simulate(&settings(one_each(), 3, 8), &workload(vec![request(0, 1, 0..4)]));
    assert_eq!((served[0].published, served[0].refused, served[0].lost), (3, 1, 1));
    assert_eq!(served[0].times.decode_read_ns, 3 * MS);
    assert_eq!(served[0].times.decode_compute_ns, 10 * MS);
    assert_eq!(served[0].times.first_token_ns, 10 * MS);
}

/// A GPU does one thing at a time: what is computed of a prompt keeps the batch waiting.
#[test]
fn what_a_decode_worker_computes_keeps_its_batch_waiting() {
    let requests = vec![request(0, 20, 0..1), request(50, 1, 10..14)];
    // Room for one block.
    let served = simulate(&settings(one_each(), 1, 8), &workload(requests));
    assert_eq!((served[1].lost, served[1].times.decode_compute_ns), (3, 30 * MS));
    assert_eq!(served[0].times.decode_ns, (19 * 10 + 30) * MS);
}

#[test]
fn tokens_behind_the_last_block_are_computed_or_sent() {
    let long = Request { prompt_tokens: 45, ..request(0, 1, 0..4) };
    let times = |system| serve_by(system, vec![long.clone()])[0].times;
    assert_eq!(times(System::Rackline).decode_compute_ns, 5 * MS);
    // 4.5 blocks of 2 ms.
    let direct = times(System::Direct);
    assert_eq!((direct.decode_read_ns, direct.decode_compute_ns), (9 * MS, 0));
}

#[test]
fn a_batch_has_no_more_tokens_than_the_gpu_has_room_for() {
    let requests = vec![request(0, 10, 0..1), request(0, 1, 1..2)];
    let mut settings = settings(one_each(), 100, 8);
    let queue = |settings: &Settings| {
        simulate(settings, &workload(requests.clone()))[1].times.decode_queue_ns
    };
    assert_eq!(queue(&settings), 0);
    settings.profile.decode.kv_tokens_max = 25;
    assert!(queue(&settings) > 50 * MS);
}

#[test]
fn requests_of_dead_workers_are_the_next_to_be_computed() {
    let rack = Rack::new(2, 2, 2).unwrap();
    let requests = workload((0..4).map(|number| request(number, 1, 0..1)).collect());
    let mut scheduler = Scheduler::new(&rack, &profile(8).decode, &requests);
    let prefill = |worker, request| Action::Prefill { worker, request };
    let decode = |worker, request| Action::Decode { worker, request };
    assert_eq!(scheduler.arrive(0), Some(prefill(0, 0)));
    assert_eq!(scheduler.arrive(1), Some(prefill(1, 1)));
    assert_eq!((scheduler.arrive(2), scheduler.arrive(3)), (None, None));
    // Worker 1 dies: its request goes before those that wait.
    assert_eq!(scheduler.lost_prefill(1, Some(1)), None);
    assert_eq!(scheduler.computed(0, 0), [decode(0, 0), prefill(0, 1)]);
    assert_eq!(scheduler.computed(0, 1), [decode(1, 1), prefill(0, 2)]);
    assert_eq!(scheduler.lost_decode(0, &[0]), []);
    assert_eq!(scheduler.computed(0, 2), [decode(1, 2), prefill(0, 0)]);
    // What a dead worker has said before its death gives it no work.
    assert_eq!(scheduler.computed(1, 3), [decode(1, 3)]);
    assert_eq!((scheduler.answered(0, 0), scheduler.answered(1, 1)), (vec![], vec![]));
    assert!(rack.survives(0) && rack.survives(1) && !one_each().survives(0));
}

/// A block passes the network in 2 ms, the link of a host in half a one, and an RPC takes 7 ms.
fn serve_by(system: System, requests: Vec<Request>) -> Vec<Served> {
    let settings = Settings { system, ..settings(one_each(), 100, 8) };
    simulate(&settings, &workload(requests))
}

fn twice() -> Vec<Request> {
    vec![request(0, 1, 0..4), request(1000, 1, 0..6)]
}

#[test]
fn a_direct_system_sends_each_prompt_and_finds_none() {
    for served in serve_by(System::Direct, twice()) {
        let times = served.times;
        assert_eq!((served.hits, served.published, served.lost), (0, 0, 0));
        assert_eq!(times.compute_ns, served.prompt_tokens * MS);
        assert_eq!((times.lookup_ns, times.read_ns, times.write_ns), (0, 0, 0));
        assert_eq!(times.decode_read_ns, served.blocks * 2 * MS);
    }
}

#[test]
fn a_cache_of_a_host_saves_computing_and_no_sending() {
    let served = serve_by(System::HostCache, twice());
    assert_eq!((served[1].hits, served[1].published), (4, 2));
    let times = served[1].times;
    assert_eq!((times.read_ns, times.compute_ns, times.write_ns), (2 * MS, 20 * MS, 0));
    assert_eq!(times.decode_read_ns, 12 * MS);
}

#[test]
fn a_cache_of_a_host_is_found_by_no_other_host() {
    let rack = Rack::new(2, 2, 1).unwrap();
    for (system, hits) in [(System::HostCache, 0), (System::Rackline, 4), (System::Store, 4)] {
        let settings = Settings { system, ..settings(rack, 100, 8) };
        let served = simulate(&settings, &workload(twice()));
        assert_eq!(served[1].hits, hits, "{system}");
    }
}

#[test]
fn a_store_asks_its_server_and_reads_from_all_hosts() {
    let times = serve_by(System::Store, twice())[0].times;
    assert_eq!((times.lookup_ns, times.decode_lookup_ns), (7 * MS, 7 * MS));
    // Two blocks stay on the host, two pass the network; the server is asked before and after.
    assert_eq!(times.write_ns, (7 + 4 + 7) * MS);
    assert_eq!(times.decode_read_ns, 4 * MS);
}

#[test]
fn a_store_evicts_on_the_host_of_a_block_whoever_writes() {
    let rack = Rack::new(2, 2, 1).unwrap();
    let requests =
        (0..4_u32).map(|number| request(u64::from(number) * 1000, 1, 4 * number..4 * number + 4));
    let settings = Settings { system: System::Store, ..settings(rack, 4, 8) };
    let served = simulate(&settings, &workload(requests.collect()));
    assert!(served.iter().all(|it| (it.published, it.refused) == (4, 0)), "{served:?}");
}

fn trace(lines: &str) -> Trace {
    Trace::read(lines.as_bytes()).unwrap()
}

#[test]
fn rates_and_lengths_are_those_that_were_asked_for() {
    let same = "{\"timestamp\":5,\"hash_ids\":[7]}\n{\"timestamp\":5,\"hash_ids\":[7]}\n\
                {\"timestamp\":5,\"hash_ids\":[9]}";
    let workload = Workload::of(&trace(same), 10, 2, Some(0.5)).unwrap();
    assert_eq!(workload.requests[1].at_ns, 2_000 * MS);
    // Of the requests that are served.
    assert_eq!(workload.unique_blocks, 1);
    // The last block is not full.
    let partial = "{\"input_length\":25,\"hash_ids\":[1,2,3]}";
    let request = Workload::of(&trace(partial), 10, 9, None).unwrap().requests.remove(0);
    assert_eq!((request.prompt_tokens, request.blocks.len()), (25, 2));
    // The last block is full, and left out.
    let short = "{\"input_length\":30,\"hash_ids\":[1,2]}";
    let request = Workload::of(&trace(short), 10, 9, None).unwrap().requests.remove(0);
    assert_eq!((request.prompt_tokens, request.blocks.len()), (30, 2));
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let refused = |lines: &str, rate| Workload::of(&trace(lines), 10, 9, rate).unwrap_err();
    let blocks = refused("{\"input_length\":70,\"hash_ids\":[1,2]}", None).to_string();
    assert!(blocks.contains("give --block-tokens as in the trace"), "{blocks}");
    let two = "{\"hash_ids\":[1]}\n{\"hash_ids\":[2]}";
    assert_eq!(refused(two, Some(1e-11)), WorkloadError::Late { number: 1 });
    let long = format!("{{\"output_length\":{},\"hash_ids\":[]}}", u64::MAX);
    assert_eq!(refused(&long, None), WorkloadError::Long { number: 0 });
    let answer = "{\"output_length\":16777216,\"hash_ids\":[1]}";
    let workload = Workload::of(&trace(answer), 10, 9, None).unwrap();
    assert_eq!(workload.check(&profile(1)), Ok(()));
    let slow = Decode { base_us: 1e6, ..profile(1).decode };
    let slow = Profile { decode: slow, ..profile(1) };
    assert_eq!(workload.check(&slow), Err(WorkloadError::Slow));
}

#[test]
fn links_that_are_none_are_refused_by_name() {
    let good = include_str!("../profiles/links-tract.toml");
    let error = |text: &str| Links::read(text).unwrap_err().to_string();
    let said = error(&good.replace("network_gb_per_s = 12.5", "network_gb_per_s = 0.0"));
    assert!(said.starts_with("network_gb_per_s: 0 * 10^9 bytes"), "{said}");
    for half in ["drive_read_gb_per_s = 6.5", "drive_write_gb_per_s = 3.5"] {
        assert!(
            error(&good.replace(half, "")).starts_with("a drive needs drive_read_gb_per_s and")
        );
    }
    assert!(error(&good.replace("rpc_ns", "rpc_us")).contains("unknown field `rpc_us`"));
    assert!(["tract", "pcie5"].iter().all(|name| Links::named(name).is_ok()));
    assert!(Links::named("track").unwrap_err().to_string().contains("give tract or pcie5"));
    for system in System::ALL {
        assert_eq!(system.name().parse(), Ok(system));
    }
    assert!("nixl".parse::<System>().is_err());
}

#[test]
fn the_last_token_of_a_prompt_is_computed_in_any_case() {
    let profile = profile(1);
    assert_eq!(profile.prefill_ns(40, 40), MS);
    assert_eq!(profile.prefill_ns(40, 30), 10 * MS);
}

#[test]
fn the_profile_of_an_h200_is_near_to_what_was_measured() {
    let profile = Profile::named("h200-llama-8b-fp8").unwrap();
    let near = |ns: u64, measured_us: u64| {
        let off = (ns / 1000).abs_diff(measured_us) * 100 / measured_us;
        assert!(off <= 18, "{ns} ns, measured {measured_us} us: {off} % off");
    };
    // Tokens of a prompt, and microseconds.
    for (tokens, us) in
        [(100, 19_525), (1117, 38_494), (3151, 63_215), (6202, 123_238), (16_372, 375_483)]
    {
        near(profile.prefill_ns(tokens, 0), us);
    }
    // Requests, the context of each in tokens, and microseconds.
    for (requests, context, us) in [
        (1, 350, 4380),
        (787, 350, 42_490),
        (49, 2997, 9938),
        (241, 2997, 31_797),
        (67, 13_585, 36_169),
    ] {
        near(profile.iteration_ns(requests, requests as u64 * context), us);
    }
}

#[test]
fn figures_that_are_none_are_refused_by_name() {
    let good = include_str!("../profiles/a6000-llama-8b.toml");
    for (from, to, said) in [
        ("token_us = 207.5", "token_us = 0.0", "prefill.token_us is 0: give a time above 0"),
        ("base_us = 20911.5", "base_us = nan", "decode.base_us is NaN"),
        ("batch_max = 256", "batch_max = 0", "decode.batch_max is 0"),
        ("kv_bytes = 131072", "kv_bytes = 0", "kv_bytes is 0"),
        ("pair_ns", "pairs_ns", "unknown field `pairs_ns`"),
    ] {
        let error = Profile::read(&good.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    for name in Profile::NAMES {
        assert!(Profile::named(name).is_ok(), "{name}");
    }
    assert!(Profile::named("h1000").unwrap_err().to_string().contains("smollm-cpu"));
    assert!(Device::new(f64::NAN, 0).is_err() && Device::new(0.0, 0).is_err());
    assert!(Rack::new(3, 1, 1).is_err() && Rack::new(1, 0, 1).is_err());
}

#[test]
fn percentiles_are_times_that_occurred() {
    let spread = Spread::of((1..=200).map(|it| it * MS).collect()).unwrap();
    assert_eq!((spread.p50_ms, spread.p90_ms, spread.p99_ms), (100.0, 180.0, 198.0));
    assert_eq!((spread.mean_ms, spread.max_ms), (100.5, 200.0));
    assert_eq!(Spread::of(Vec::new()), None);
}

prop_compose! {
    fn any_request()(at_ms in 0..500_u64, output in 1..20_u64, first in 0..30_u32, count in 0..12_u32)
        -> Request
    {
        request(at_ms, output, first..first + count)
    }
}

proptest! {
    #[test]
    fn every_request_is_answered_and_its_stages_add_up(
        mut requests in proptest::collection::vec(any_request(), 1..40),
        (nodes, prefill, decode) in (1..4_u16, 2..4_u16, 2..7_u16),
        chunks in 1..60_u32,
        (batch_max, kv_tokens_max) in (1..5_u32, 20..400_u64),
        room_blocks in 1..60_u64,
        system in proptest::sample::select(&System::ALL[..]),
        (killed, at_ms) in (0..4_u16, 0..2000_u64),
    ) {
        requests.sort_by_key(|it| it.at_ns);
        let rack = Rack::new(nodes, prefill, decode).unwrap();
        let workload = workload(requests);
        let mut drives = with_drives(settings(rack, chunks, batch_max), Some(room_blocks));
        drives.profile.decode.kv_tokens_max = kv_tokens_max;
        let kill = rack.survives(killed).then_some(Kill { node: killed, at_ns: at_ms * MS });
        let settings = Settings { system, kill, ..drives };
        let served = simulate(&settings, &workload);
        for it in &served {
            prop_assert!(it.from_drives <= it.hits + it.found_again);
            let to_first: u64 = Times::TO_FIRST_TOKEN.iter().map(|(_, of)| of(&it.times)).sum();
            prop_assert_eq!(to_first, it.ttft_ns);
            prop_assert_eq!(it.ttft_ns + it.times.decode_ns, it.latency_ns);
            prop_assert!(it.times.first_token_ns >= 10 * MS);
            if it.restarts == 0 {
                prop_assert!(it.hits + it.published + it.refused <= it.blocks);
                prop_assert_eq!(it.found_again, 0);
            }
            prop_assert!(it.restarts <= 1);
            prop_assert!(it.ttft_ns > 0 && it.hits <= it.blocks);
        }
        prop_assert_eq!(&served, &simulate(&settings, &workload));
    }
}

/// RACK-R3: the worker with the fewest requests dies, and the one that is left has room.
#[test]
fn a_computed_prompt_does_not_wait_beside_a_decode_worker_with_room() {
    let rack = Rack::new(2, 2, 2).unwrap();
    // Tokens of the four requests: 10, 60, 10, 50; a worker has room for 80.
    let long = |tokens: u64| Request {
        at_ns: 0,
        prompt_tokens: tokens - 1,
        output_tokens: 1,
        blocks: Vec::new(),
    };
    let requests = [10, 60, 10, 50].map(long).to_vec();
    let workload = Workload { requests, block_tokens: 10, unique_blocks: 0 };
    let decode = Decode {
        base_us: 1.0,
        request_us: 0.0,
        context_token_us: 0.0,
        batch_max: 100,
        kv_tokens_max: 80,
    };
    let mut scheduler = Scheduler::new(&rack, &decode, &workload);
    let prefill = |scheduler: &mut Scheduler, request| {
        let action = scheduler.arrive(request);
        let Some(Action::Prefill { worker, .. }) = action else { panic!("{action:?}") };
        scheduler.computed(worker, request)
    };
    // Worker 0: 10 and 10 tokens. Worker 1: 60.
    assert_eq!(prefill(&mut scheduler, 0), [Action::Decode { worker: 0, request: 0 }]);
    assert_eq!(prefill(&mut scheduler, 1), [Action::Decode { worker: 1, request: 1 }]);
    assert_eq!(prefill(&mut scheduler, 2), [Action::Decode { worker: 0, request: 2 }]);
    // 50 more do not fit on worker 1, which has the fewest requests; on worker 0 they would.
    assert_eq!(prefill(&mut scheduler, 3), []);
    let actions = scheduler.lost_decode(1, &[1]);
    assert!(actions.contains(&Action::Decode { worker: 0, request: 3 }), "{actions:?}");
}

/// Two of each: workers 0 are on node 0, and workers 1 on node 1.
fn with_kill(system: System, node: u16, at_ms: u64) -> Settings {
    let kill = Some(Kill { node, at_ns: at_ms * MS });
    Settings { kill, system, ..settings(Rack::new(2, 2, 2).unwrap(), 100, 8) }
}

#[test]
fn what_a_killed_prefill_worker_computed_begins_again() {
    let requests = vec![request(0, 1, 0..4), request(0, 1, 10..14)];
    let served = simulate(&with_kill(System::Rackline, 1, 30), &workload(requests));
    let [first, again] = &served[..] else { panic!("two requests") };
    assert_eq!((first.restarts, first.ttft_ns), (0, 58 * MS));
    assert_eq!((again.restarts, again.hits, again.found_again, again.published), (1, 0, 0, 4));
    // Its new worker has computed and written the first prompt.
    assert_eq!((again.times.queue_ns, again.ttft_ns), (44 * MS, (44 + 58) * MS));
}

/// It was written to the shared memory, and is found there.
#[test]
fn an_answer_that_a_decode_worker_had_begun_is_given_by_another() {
    let requests = vec![request(0, 100, 0..1), request(0, 10, 10..14)];
    let run =
        |kill_ms| simulate(&with_kill(System::Rackline, 1, kill_ms), &workload(requests.clone()));
    // Its first token comes after 58 ms, and its last would come after 148.
    let again = run(100)[1];
    assert_eq!((again.restarts, again.found_again, again.published), (1, 4, 4));
    assert_eq!((again.ttft_ns, again.times.queue_ns), (58 * MS, 0));
    // Read for 4 ms, one token computed, read for 4 ms by the other decode worker, which begins an
    // iteration 3 ms later; ten tokens.
    assert_eq!(again.latency_ns, (100 + 4 + 1 + 4 + 3 + 100) * MS);
    assert_eq!(again.times.decode_ns, again.latency_ns - again.ttft_ns);
    assert_eq!(run(149)[1].restarts, 0, "it was answered");
}

#[test]
fn a_prompt_on_its_way_from_a_killed_node_begins_again() {
    // The second prompt is computed on node 1, and goes to the decode worker of node 0.
    let requests = vec![request(0, 100, 0..1), request(0, 1, 10..18), request(0, 1, 20..24)];
    let run = |system, at_ms| {
        let kill = Some(Kill { node: 1, at_ns: at_ms * MS });
        let rack = Rack::new(3, 2, 1).unwrap();
        let settings = Settings { kill, system, ..settings(rack, 100, 8) };
        simulate(&settings, &workload(requests.clone())).iter().map(|it| it.restarts).collect()
    };
    // It is computed for 80 ms, and on its way for 16, or written for 8.
    let restarts: [Vec<u64>; 4] = [
        run(System::Direct, 85),
        run(System::Direct, 200),
        run(System::Rackline, 85),
        run(System::Rackline, 89),
    ];
    assert_eq!(restarts, [[0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]);
}

/// Half of the blocks were in the memory of the killed node.
#[test]
fn a_store_loses_what_the_killed_node_had() {
    let requests = vec![request(0, 1, 0..4), request(1000, 1, 0..4), request(2000, 1, 0..4)];
    let hits = |system| {
        let served = simulate(&with_kill(system, 1, 500), &workload(requests.clone()));
        served.iter().map(|it| it.hits).collect::<Vec<_>>()
    };
    assert_eq!(hits(System::Rackline), [0, 4, 4]);
    // Blocks 1 and 3 are gone, and written anew to the other node.
    assert_eq!(hits(System::Store), [0, 1, 4]);
}

#[test]
fn drives_of_a_killed_node_are_not_read() {
    // The prefill workers take turns: the second one has prompts without a whole block.
    let requests = vec![
        request(0, 1, 0..4),
        request(100, 1, 0..0),
        request(500, 1, 4..8),
        request(600, 1, 0..0),
        request(1000, 1, 0..4),
    ];
    let small = settings(Rack::new(2, 2, 2).unwrap(), 4, 8);
    let of = |kill| {
        let settings = Settings { kill, ..with_drives(small.clone(), None) };
        let served = simulate(&settings, &workload(requests.clone()));
        (served[4].hits, served[4].from_drives)
    };
    assert_eq!(of(None), (4, 4));
    assert_eq!(of(Some(Kill { node: 0, at_ns: 800 * MS })), (0, 0));
}

/// Only a node that publishes lets blocks leave: nodes 2 and 3 have decode workers alone.
#[test]
fn what_a_killed_node_had_in_the_pool_makes_room_for_others() {
    // Worker 1 fills the pool.
    let requests = vec![request(0, 1, 0..0), request(0, 1, 0..4), request(1000, 1, 4..8)];
    let kill = Some(Kill { node: 1, at_ns: 500 * MS });
    let settings = Settings { kill, ..settings(Rack::new(4, 2, 2).unwrap(), 4, 8) };
    let served = simulate(&settings, &workload(requests));
    let [_, before, after] = &served[..] else { panic!("three requests") };
    assert_eq!((before.published, before.refused), (4, 0));
    assert_eq!((after.published, after.refused, after.lost), (4, 0, 0));
}

/// Decode workers 0 and 2 are on the node that is killed. A computed prompt waits, as it does not fit on
/// worker 0, which has the fewest requests.
#[test]
fn no_prompt_goes_to_another_worker_of_the_killed_node() {
    let requests = vec![
        // For workers 0, 1, 2, 0 and 1. The first is soon answered.
        request(0, 5, 0..1),
        request(0, 40, 1..2),
        request(0, 50, 2..3),
        request(0, 90, 3..4),
        request(0, 20, 4..5),
        // Worker 0 has one request of 100 tokens, worker 1 two of 80 together, and worker 2 one of 60.
        request(100, 60, 5..6),
    ];
    let rack = Rack::new(2, 2, 3).unwrap();
    let mut settings = settings(rack, 100, 8);
    settings.profile.decode.kv_tokens_max = 150;
    let run = |kill| simulate(&Settings { kill, ..settings.clone() }, &workload(requests.clone()));
    assert!(run(None)[5].times.decode_queue_ns > 100 * MS, "it waits");
    let served = run(Some(Kill { node: 0, at_ns: 200 * MS }));
    let restarts: Vec<_> = served.iter().map(|it| it.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 1, 0, 0]);
    let last = &served[5];
    // It was computed once, and none of its blocks is a hit.
    assert_eq!((last.hits, last.published, last.found_again), (0, 1, 0), "{last:?}");
}

#[test]
fn nothing_begins_on_a_node_that_is_killed_at_once() {
    let requests = vec![request(0, 1, 0..4), request(0, 1, 4..8)];
    for system in System::ALL {
        let settings = with_drives(with_kill(system, 1, 0), None);
        let served = simulate(&Settings { system, ..settings }, &workload(requests.clone()));
        assert!(served.iter().all(|it| it.restarts == 0 && it.ttft_ns > 0), "{system}: {served:?}");
    }
}

/// Block 2 was read from the killed node before it died.
#[test]
fn what_a_store_loses_of_a_prompt_under_way_is_not_written_again() {
    let requests = vec![request(0, 1, 0..4), request(1000, 1, 0..5)];
    let rack = Rack::new(3, 2, 2).unwrap();
    let settings = Settings { system: System::Store, ..settings(rack, 100, 8) };
    let whole = simulate(&settings, &workload(requests.clone()));
    // The rest of the second prompt is computed for 10 ms.
    let read_ms = (whole[1].times.lookup_ns + whole[1].times.read_ns) / MS;
    let kill = Some(Kill { node: 2, at_ns: (1000 + read_ms + 5) * MS });
    let served = simulate(&Settings { kill, ..settings }, &workload(requests));
    let [before, after] = [&whole[1], &served[1]];
    assert_eq!((before.hits, before.published, before.lost), (4, 1, 0));
    // Its decode worker finds two blocks.
    assert_eq!((after.restarts, after.hits, after.published, after.lost), (0, 4, 1, 3));
    assert_eq!(after.times.write_ns, before.times.write_ns);
}
