//! The order is that of a sorted list.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick,
    Enter { depth: u16, unused: bool },
    Use(usize),
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Tick),
        4 => (0u16..5, any::<bool>()).prop_map(|(depth, unused)| Step::Enter { depth, unused }),
        3 => (0usize..40).prop_map(Step::Use),
        1 => (0usize..40).prop_map(Step::Leave),
    ]
}

/// A block of the list: tick, depth and number.
type Plain = (u64, Reverse<u16>, u32);

fn depth_in(list: &[Plain], number: u32) -> u16 {
    list.iter().find(|block| block.2 == number).map_or(0, |block| block.1.0)
}

proptest! {
    #[test]
    fn the_oldest_are_those_of_a_sorted_list(
        steps in proptest::collection::vec(step(), 0..300),
        want in 0usize..50,
        modulus in 1u32..4,
    ) {
        let (mut order, mut list, mut now) = (LeafOrder::default(), Vec::<Plain>::new(), 1);
        for step in steps {
            match step {
                Step::Tick => {
                    order.tick();
                    now += 1;
                }
                Step::Enter { depth, unused } => {
                    let number = if unused { order.enter_unused() } else { order.enter() };
                    prop_assert!(list.iter().all(|block| block.2 != number));
                    list.push((if unused { 0 } else { now }, Reverse(depth), number));
                }
                Step::Use(at) if at < list.len() => {
                    order.used(list[at].2);
                    list[at].0 = now;
                }
                Step::Leave(at) if at < list.len() => {
                    order.leave(list.swap_remove(at).2);
                }
                Step::Use(_) | Step::Leave(_) => {}
            }
            prop_assert_eq!(order.len(), list.len());
        }
        let found = Oldest::of(
            &order, want, |number| number % modulus == 0, |number| depth_in(&list, number),
        );
        list.sort_unstable();
        let expected = list.iter().map(|block| block.2).filter(|number| number % modulus == 0);
        prop_assert_eq!(found, expected.take(want).collect::<Vec<_>>());
    }
}

#[test]
fn ticks_that_are_used_up_are_numbered_anew_in_their_order() {
    let mut order = LeafOrder::default();
    let unused = order.enter_unused();
    let mut list = vec![unused];
    // One of 50 ticks has a block that stays: all keep a tick of their own.
    for tick in 0..200_000 {
        order.tick();
        if tick % 50 == 0 {
            list.push(order.enter());
        }
    }
    assert_eq!(Oldest::of(&order, usize::MAX, |_| true, |_| 0), list);
    assert_eq!(order.len(), 4001);
}

#[test]
fn more_moments_than_ticks_share_them_and_keep_their_order() {
    let mut order = LeafOrder::default();
    for _ in 0..150_000 {
        order.tick();
        order.enter();
    }
    let found = Oldest::of(&order, 1000, |_| true, |_| 0);
    assert_eq!(found.len(), 1000);
    // Of 150,000 moments in 65,534 ticks: the first thousand are among the first few.
    assert!(found.iter().all(|number| *number < 1016), "{:?}", found.iter().max());
    let newest = Oldest::of(&order, usize::MAX, |_| true, |_| 0)[149_999];
    assert!(newest > 149_980, "{newest}");
}

#[test]
fn a_block_takes_2_bytes() {
    let mut order = LeafOrder::default();
    (0..100_000).for_each(|number| assert_eq!(order.enter(), number));
    assert!(order.memory_bytes() < 2 * 100_000 + 2 * CHUNK);
}

#[test]
fn parts_are_looked_at_one_after_the_other() {
    let mut order = LeafOrder::default();
    let blocks = u32::try_from(3 * PART).unwrap() + 7;
    for number in 0..blocks {
        if number % 1000 == 0 {
            order.tick();
        }
        order.enter();
    }
    order.tick();
    (0..2000).for_each(|number| order.used(number));
    let depth = |number: u32| u16::try_from(number % 1000).unwrap();
    let expected: Vec<u32> = (2000..3000).rev().collect();
    assert_eq!(Oldest::of(&order, 1000, |_| true, depth), expected);
}
