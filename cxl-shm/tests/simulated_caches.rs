//! What the simulated caches, links and devices do: every fault that the simulator models shows,
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! and every rule of access (MEM-M1 to MEM-M9) that guards against it helps.

use cxl_shm::fabric::Fabric;
use cxl_shm::units::{LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::{EventKind, Settings, SimulatedHost, SimulatedRack};

const BYTES: u64 = 64 * 1024;
const SEEDS: u64 = 300;

fn line(number: u64) -> LineOffset {
    LineOffset::new(number * 64).unwrap()
}

fn word(number: u64, index: usize) -> WordOffset {
    line(number).word(index).unwrap()
}

fn range(number: u64) -> LineRange {
    LineRange::one(line(number))
}

/// A sticky rack of two hosts whose fence waits for the device.
fn plain() -> (SimulatedRack, SimulatedHost, SimulatedHost) {
    let rack = SimulatedRack::with(Settings { posted_writes: false, ..Settings::sticky(2, BYTES) });
    let (a, b) = (rack.host(0), rack.host(1));
    (rack, a, b)
}

/// How many of the seeds make `goes_wrong` true on an adversarial rack of two hosts.
fn adversarial_seeds_where(
    goes_wrong: impl Fn(&SimulatedRack, &SimulatedHost, &SimulatedHost) -> bool,
) -> u64 {
    let wrong = |seed: u64| {
        let rack = SimulatedRack::adversarial(2, BYTES, seed);
        goes_wrong(&rack, &rack.host(0), &rack.host(1))
    };
    (0..SEEDS).map(|seed| u64::from(wrong(seed))).sum()
}

#[test]
fn a_read_without_refresh_is_stale() {
    let (_, a, b) = plain();
    assert_eq!(b.load(word(1, 0)), 0);
    a.store(word(1, 0), 7);
    a.publish(range(1));
    assert_eq!(b.load(word(1, 0)), 0);
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 7);
}

#[test]
fn a_store_without_publish_is_seen_by_its_own_host_only() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 7);
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 0);
    assert_eq!(rack.host(0).load(word(1, 0)), 7, "another thread of the host");
    assert_eq!(rack.dirty_lines(0), [line(1)]);
}

#[test]
fn a_write_back_without_fence_does_not_arrive() {
    let (_, a, b) = plain();
    a.store(word(1, 0), 7);
    a.write_back(range(1));
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 0);
    a.fence();
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 7);
}

#[test]
fn a_load_passes_an_unfenced_invalidation() {
    let (_, a, b) = plain();
    assert_eq!(b.load(word(1, 0)), 0);
    a.store(word(1, 0), 7);
    a.publish(range(1));
    b.invalidate(range(1));
    assert_eq!(b.load(word(1, 0)), 0, "MEM-M3: the old copy answers until the fence");
    b.fence();
    assert_eq!(b.load(word(1, 0)), 7);
}

#[test]
fn only_the_fence_of_the_same_thread_completes_a_flush() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 7);
    a.write_back(range(1));
    let other = rack.host(0);
    std::thread::spawn(move || other.fence()).join().unwrap();
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 0);
}

#[test]
fn a_flush_is_ordered_with_later_stores_to_its_line() {
    let (rack, a, _) = plain();
    a.store(word(1, 0), 7);
    a.write_back(range(1));
    a.store(word(1, 0), 8);
    assert_eq!(rack.device_word(word(1, 0)), 7);
    a.fence();
    assert_eq!(rack.device_word(word(1, 0)), 7, "the later store was not flushed");
}

#[test]
fn refreshing_a_dirty_line_writes_it_back_over_everything() {
    let (_, a, b) = plain();
    a.store(word(1, 0), 1);
    b.store(word(1, 0), 2);
    b.publish(range(1));
    a.refresh(range(1));
    assert_eq!(a.load(word(1, 0)), 1, "the forgotten old store came back (MEM-M8)");
}

#[test]
fn two_writing_hosts_in_a_line_lose_an_update() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 1);
    b.store(word(1, 1), 2);
    a.publish(range(1));
    b.publish(range(1));
    a.refresh(range(1));
    assert_eq!((a.load(word(1, 0)), a.load(word(1, 1))), (0, 2), "MEM-M1");
    assert_eq!(rack.conflicts(), [line(1)]);
}

#[test]
fn a_handed_over_line_is_no_conflict() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 1);
    a.publish(range(1));
    b.refresh(range(1));
    b.store(word(1, 1), 2);
    b.publish(range(1));
    assert_eq!(rack.conflicts(), []);
    assert_eq!(rack.device_word(word(1, 0)), 1);
    assert_eq!(rack.device_word(word(1, 1)), 2);
}

#[test]
fn a_posted_write_needs_its_read_back() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (a, b) = (rack.host(0), rack.host(1));
    a.store(word(1, 0), 7);
    a.write_back(range(1));
    a.fence();
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 0, "the fence did not wait for the device");
    assert_eq!(rack.device_word(word(1, 0)), 0);
    assert_eq!(rack.dirty_lines(0), []);
    a.read_back(range(1));
    b.refresh(range(1));
    assert_eq!(b.load(word(1, 0)), 7);
}

#[test]
fn a_read_by_the_same_host_pushes_its_posted_writes() {
    let rack = SimulatedRack::sticky(1, BYTES);
    let a = rack.host(0);
    a.store(word(1, 0), 7);
    a.write_back(range(1));
    a.fence();
    assert_eq!(a.load(word(1, 0)), 7, "a host never loses sight of its own store");
    assert_eq!(rack.device_word(word(1, 0)), 7);
}

#[test]
fn adversarial_caches_may_show_an_unpublished_store_or_not() {
    let shown = adversarial_seeds_where(|_, a, b| {
        a.store(word(1, 0), 7);
        (0..20).any(|_| {
            b.refresh(range(1));
            b.load(word(1, 0)) == 7
        })
    });
    assert!((1..SEEDS).contains(&shown), "{shown}");
}

#[test]
fn adversarial_caches_may_prefetch_what_was_just_dropped() {
    // Both lines are dropped, then the other host publishes, then this host reads: nothing after
    // the publish was refreshed, and the copies may be from before it.
    let stale = adversarial_seeds_where(|_, a, b| {
        assert_eq!(b.load(word(1, 0)) + b.load(word(2, 0)), 0);
        b.refresh(LineRange::new(line(1), 2).unwrap());
        for number in [1, 2] {
            a.store(word(number, 0), 7);
            a.publish(range(number));
        }
        b.load(word(2, 0)) == 7 && b.load(word(1, 0)) == 0
    });
    assert!((1..SEEDS).contains(&stale), "{stale}");
}

#[test]
fn adversarial_prefetch_stays_in_pages_that_the_host_touched() {
    for seed in 0..SEEDS {
        let rack = SimulatedRack::adversarial(2, BYTES, seed);
        let (a, b) = (rack.host(0), rack.host(1));
        for _ in 0..50 {
            a.load(word(1, 0));
            b.load(word(64, 0));
        }
        let prefetched = |host: usize, page: u64| {
            let of_host = |event: &cxl_shm::verify::simulated::Event| {
                event.host == host && event.kind == EventKind::CachePrefetched
            };
            let events = rack.history();
            events.iter().filter(|event| of_host(event)).all(|event| event.at / 4096 == page)
        };
        assert!(prefetched(0, 0) && prefetched(1, 1), "seed {seed}");
    }
}

#[test]
fn a_line_can_be_torn_between_words_but_no_word_is() {
    let torn = adversarial_seeds_where(|_, a, b| {
        let mut torn = false;
        for round in 1..20 {
            a.write_line(line(1), &[round; 8]);
            b.refresh(range(1));
            let words = b.read_line(line(1));
            assert!(words.iter().all(|word| *word <= round));
            torn |= words.iter().any(|word| *word != words[0]);
        }
        torn
    });
    assert!((1..SEEDS).contains(&torn), "{torn}");
}

#[test]
fn a_poisoned_line_answers_garbage_once_it_is_fetched() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 7);
    a.publish(range(1));
    assert_eq!(b.load(word(1, 0)), 7);
    rack.poison(line(1));
    assert_eq!(b.load(word(1, 0)), 7, "the cached copy is intact");
    b.refresh(range(1));
    assert_ne!(b.load(word(1, 0)), 7);
    a.store(word(1, 0), 8);
    a.publish(range(1));
    b.refresh(range(1));
    assert_ne!(b.load(word(1, 0)), 8, "the line takes no writes");
    assert_eq!(b.load(word(2, 0)), 0, "its neighbour is intact");
}

#[test]
fn a_flipped_bit_shows_after_a_refresh() {
    let (rack, a, _) = plain();
    assert_eq!(a.load(word(1, 1)), 0);
    rack.flip_bit(64 + 8 + 2, 1);
    assert_eq!(a.load(word(1, 1)), 0);
    a.refresh(range(1));
    assert_eq!(a.load(word(1, 1)), 1 << 17);
}

#[test]
fn a_large_memory_costs_nothing() {
    let rack = SimulatedRack::sticky(2, 1 << 44);
    let last = WordOffset::new((1 << 44) - 8).unwrap();
    rack.host(0).store(last, 1);
    rack.host(0).publish(LineRange::one(last.line()));
    assert_eq!(rack.host(1).load(last), 1);
}

#[test]
fn a_warm_cache_is_as_old_as_the_moment_it_was_warmed() {
    let rack = SimulatedRack::sticky(2, 1 << 20);
    let (writer, reader) = (rack.host(0), rack.host(1));
    let all = LineRange::new(LineOffset::new(0).unwrap(), 1 << 14).unwrap();
    let words = [64, 128].map(|at| WordOffset::new(at).unwrap());
    let publish = |value| {
        for word in words {
            writer.store(word, value);
            writer.publish(LineRange::one(word.line()));
        }
    };
    publish(1);
    rack.warm(1, all);
    publish(2);
    assert_eq!(words.map(|word| reader.load(word)), [1, 1]);
    reader.refresh(LineRange::one(words[0].line()));
    assert_eq!(words.map(|word| reader.load(word)), [2, 1]);
    publish(3);
    // Warmed again: what is there stays as old as it is, what was dropped comes back as it is now.
    reader.refresh(LineRange::one(words[0].line()));
    rack.warm(1, all);
    publish(4);
    assert_eq!(words.map(|word| reader.load(word)), [3, 1]);
    rack.crash(1);
    assert_eq!(words.map(|word| reader.load(word)), [4, 4]);
}

#[test]
fn warming_lands_no_posted_write() {
    let rack = SimulatedRack::sticky(1, 4096);
    let (host, word) = (rack.host(0), WordOffset::new(64).unwrap());
    let line = LineRange::one(word.line());
    rack.warm(0, LineRange::new(LineOffset::new(0).unwrap(), 64).unwrap());
    host.store(word, 1);
    host.write_back(line);
    host.fence();
    rack.warm(0, LineRange::new(LineOffset::new(0).unwrap(), 64).unwrap());
    assert_eq!(rack.device_word(word), 0, "it is on its way");
    host.read_back(line);
    assert_eq!(rack.device_word(word), 1);
}
