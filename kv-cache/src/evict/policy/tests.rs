//! What every policy keeps to, whatever is done to it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert { slot: u32, key: u64, depth: u32 },
    Touch(u32),
    Remove(u32),
    Evict { want: usize, held: u32 },
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u32..24, 0u64..40, 0u32..6).prop_map(|(slot, key, depth)| Step::Insert {
            slot,
            key,
            depth
        }),
        (0u32..32).prop_map(Step::Touch),
        (0u32..32).prop_map(Step::Remove),
        (0usize..12, 1u32..8).prop_map(|(want, held)| Step::Evict { want, held }),
        Just(Step::Tick),
    ]
}

proptest! {
    /// Victims are there, are different, are allowed, and are as many as possible.
    #[test]
    fn victims_are_what_may_leave(
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut policy = kind.build();
        let mut there = BTreeMap::new();
        let mut tick = 0;
        for step in steps {
            match step {
                Step::Insert { slot, key, depth } => {
                    there.insert(slot, key);
                    policy.inserted(slot, Newcomer { key, depth, tick });
                }
                Step::Touch(slot) => policy.touched(slot, tick),
                Step::Remove(slot) => {
                    there.remove(&slot);
                    policy.removed(slot);
                }
                Step::Evict { want, held } => {
                    let may = |slot: u32| !slot.is_multiple_of(held);
                    let mut victims = policy.victims(want, &mut |slot| may(slot));
                    let can = there.keys().filter(|slot| may(**slot)).count();
                    prop_assert_eq!(victims.len(), want.min(can));
                    // A third of them stays after all.
                    for (number, slot) in victims.iter().enumerate() {
                        if number % 3 < 2 {
                            policy.removed(*slot);
                            prop_assert!(may(*slot) && there.remove(slot).is_some());
                        }
                    }
                    victims.sort_unstable();
                    victims.dedup();
                    prop_assert_eq!(victims.len(), want.min(can));
                }
                Step::Tick => tick += 1,
            }
            prop_assert_eq!(policy.len(), there.len());
        }
    }

    /// Within a tick the order in which blocks are told does not matter: the leaf goes first.
    #[test]
    fn a_chain_leaves_from_its_leaf(
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        order in Just((0u32..40).collect::<Vec<_>>()).prop_shuffle(),
        uses in 0usize..3,
        want in 1usize..=40,
    ) {
        let mut policy = kind.build();
        for depth in &order {
            policy.inserted(*depth, Newcomer { key: (*depth).into(), depth: *depth, tick: 1 });
        }
        for slot in order.iter().cycle().take(uses * order.len()) {
            policy.touched(*slot, 2);
        }
        let victims = policy.victims(want, &mut |_| true);
        let leaves: Vec<_> = (0..40).rev().take(want).collect();
        prop_assert_eq!(victims, leaves);
    }
}

#[test]
fn policies_have_names() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert!(kind.build().is_empty());
    }
    let error = "fifo".parse::<PolicyKind>().unwrap_err().to_string();
    for kind in PolicyKind::ALL {
        assert!(error.contains(kind.name()), "{error}");
    }
}
