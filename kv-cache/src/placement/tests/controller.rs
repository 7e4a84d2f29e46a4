//! What the controller decides, and that nobody waits for ever.

use super::*;

const EXPECTED: Measured = Measured { layer_ns: 3000, block_ns: Some(1000) };

/// 9 layers, 3 blocks a layer time, one token a block: every step adds a block a layer.
fn policy(gpu_blocks: u64) -> Policy {
    let horizon = Horizon { block_tokens: 1, ..Horizon::default() };
    Policy { horizon, ..Policy::new(9, gpu_blocks) }
}

/// A job of so many blocks a layer.
fn job(id: u64, blocks: u64) -> Job {
    Job { id, tokens: blocks - 1, slo_ns: None }
}

fn decide(controller: &mut Controller) -> Decision {
    controller.decide(&mut || true).unwrap()
}

fn places(actions: &[Action]) -> Vec<u64> {
    let place = |action: &Action| match action {
        Action::Place { id, .. } => Some(*id),
        _ => None,
    };
    actions.iter().filter_map(place).collect()
}

#[test]
fn a_plan_holds_until_something_triggers_another() {
    let horizon = Horizon { block_tokens: 16, steps_max: 40, ..Horizon::default() };
    let mut controller = Controller::new(Policy { horizon, ..Policy::new(9, 200) }, EXPECTED);
    assert_eq!(decide(&mut controller), Decision::default());
    controller.arrive(Job { id: 1, tokens: 3 * 16, slo_ns: None });
    controller.arrive(Job { id: 2, tokens: 5 * 16, slo_ns: None });
    let decision = decide(&mut controller);
    assert_eq!(decision.trigger, Some(Trigger::BatchChange));
    assert_eq!(places(&decision.actions), [1, 2]);
    assert_eq!(decide(&mut controller), Decision::default());
    for _ in 0..40 {
        assert_eq!(decide(&mut controller), Decision::default());
        controller.stepped(0, EXPECTED);
    }
    assert_eq!(decide(&mut controller).trigger, Some(Trigger::WindowEnd));
    // Slower by more than a fifth, on average over eight iterations.
    let slower = Measured { block_ns: Some(1500), ..EXPECTED };
    for _ in 0..3 {
        controller.stepped(0, slower);
        assert_eq!(decide(&mut controller), Decision::default());
    }
    controller.stepped(0, slower);
    assert_eq!(decide(&mut controller).trigger, Some(Trigger::ProfileMismatch));
    assert_eq!(decide(&mut controller), Decision::default(), "that is planned with now");
    controller.finish(2);
    controller.finish(3);
    assert_eq!(decide(&mut controller).trigger, Some(Trigger::BatchChange));
}

#[test]
fn the_largest_request_is_paused_and_resumed() {
    let mut controller = Controller::new(policy(70), EXPECTED);
    controller.arrive(job(1, 3));
    controller.arrive(job(2, 6));
    decide(&mut controller);
    assert_eq!(controller.running().collect::<Vec<_>>(), [1, 2]);
    controller.arrive(job(3, 5));
    let decision = decide(&mut controller);
    assert!(decision.actions.contains(&Action::Pause(2)), "{decision:?}");
    assert_eq!(controller.running().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(controller.paused().collect::<Vec<_>>(), [2]);
    controller.finish(3);
    let decision = decide(&mut controller);
    assert!(decision.actions.contains(&Action::Resume(2)), "{decision:?}");
    assert!(places(&decision.actions).contains(&2), "{decision:?}");
    assert_eq!(controller.paused().count(), 0);
}

#[test]
fn a_deposit_counts_for_the_victim() {
    let mut controller = Controller::new(policy(100), EXPECTED);
    controller.arrive(Job { slo_ns: Some(1_000_000), ..job(1, 4) });
    controller.arrive(job(2, 5));
    decide(&mut controller);
    for step in 1..=3 {
        controller.stepped(step, EXPECTED);
    }
    assert_eq!((controller.deposited(1), controller.deposited(2)), (3, 0));
    assert_eq!(controller.release(3), [(1, 1), (2, 3)], "2 has no SLO: nothing is kept back");
    assert_eq!(controller.release(4), []);
    controller.arrive(job(3, 8));
    decide(&mut controller);
    // 1 has 7 blocks a layer and 2 deposited tokens, 2 and 3 have 8 blocks.
    assert_eq!(controller.paused().next(), Some(1));
    // While it waits, its reader gets the tokens at the promised rate.
    assert_eq!(controller.release(2_000_001), [(1, 2)]);
}

#[test]
fn a_paused_request_runs_when_the_last_one_is_rejected() {
    let policy = Policy { pause_steps_max: 1000, ..policy(70) };
    let mut controller = Controller::new(policy, EXPECTED);
    controller.arrive(job(1, 7));
    decide(&mut controller);
    controller.arrive(job(2, 6));
    decide(&mut controller);
    assert_eq!(controller.paused().collect::<Vec<_>>(), [1]);
    // Request 2 grows by a block a layer in each step, until it does not fit alone.
    for _ in 0..100 {
        controller.stepped(0, EXPECTED);
        let decision = decide(&mut controller);
        let rejects = |action: &Action| matches!(action, Action::Reject { id: 2, .. });
        if decision.actions.iter().any(rejects) {
            assert!(decision.actions.contains(&Action::Resume(1)), "{decision:?}");
            assert_eq!(places(&decision.actions), [1]);
            assert_eq!(controller.running().collect::<Vec<_>>(), [1]);
            return;
        }
    }
    panic!("request 2 is too large by now");
}

#[test]
fn a_request_whose_tokens_are_late_runs_alone() {
    let mut controller = Controller::new(policy(70), EXPECTED);
    // An iteration takes 27,000 ns without stalls. Both fit together, with stalls.
    let hasty = |id| Job { slo_ns: Some(27_000), ..job(id, 7) };
    controller.arrive(hasty(1));
    controller.arrive(hasty(2));
    let decision = decide(&mut controller);
    let rejects = |action: &Action| matches!(action, Action::Reject { .. });
    assert!(!decision.actions.iter().any(rejects), "{decision:?}");
    assert_eq!(places(&decision.actions), [1]);
    assert_eq!(controller.paused().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_request_runs_when_every_search_is_stopped() {
    let mut controller = Controller::new(policy(70), EXPECTED);
    controller.arrive(job(1, 7));
    controller.arrive(job(2, 6));
    let decision = controller.decide(&mut || false).unwrap();
    assert_eq!(places(&decision.actions), [2], "1 is the larger one, and waits");
    assert_eq!(controller.paused().collect::<Vec<_>>(), [1]);
    controller.finish(2);
    let decision = controller.decide(&mut || false).unwrap();
    assert_eq!(places(&decision.actions), [1]);
    controller.finish(1);
    assert_eq!(decide(&mut controller).actions, []);
}

#[test]
fn layers_of_a_paused_request_leave_as_room_is_needed() {
    let mut controller = Controller::new(policy(70), EXPECTED);
    controller.arrive(job(1, 7));
    decide(&mut controller);
    controller.arrive(job(2, 6));
    let decision = decide(&mut controller);
    // Request 2 takes 54 of 70 blocks: 16 are left, two layers of 7 blocks.
    let evict = |layers: &[u16]| Action::Evict { id: 1, layers: layers.to_vec() };
    let none = Action::Place { id: 2, placement: Placement::default() };
    assert_eq!(decision.actions, [Action::Pause(1), evict(&[3, 4, 5, 6, 7, 8, 9]), none]);
    controller.stepped(0, EXPECTED);
    // It has grown to 63 blocks, and its plan still holds.
    let decision = decide(&mut controller);
    assert_eq!(decision, Decision { trigger: None, actions: vec![evict(&[2])] });
    assert_eq!(decide(&mut controller), Decision::default());
}

#[test]
fn what_never_fits_is_rejected() {
    let mut controller = Controller::new(policy(70), EXPECTED);
    controller.arrive(job(1, 71));
    controller.arrive(job(2, 2));
    let decision = decide(&mut controller);
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::Pause(_))));
    assert_eq!(controller.running().collect::<Vec<_>>(), [2]);
    controller.finish(2);
    let decision = decide(&mut controller);
    let [Action::Resume(1), Action::Reject { id: 1, reason }] = &decision.actions[..] else {
        panic!("{decision:?}")
    };
    assert!(reason.to_string().contains("room for 70 blocks"), "{reason}");
    assert_eq!(controller.running().count() + controller.paused().count(), 0);
}

/// It runs as long as it fits (PLAN-C5).
#[test]
fn a_request_that_will_not_fit_later_runs_now() {
    let wide = policy(40);
    let horizon = Horizon { steps: 50, ..wide.horizon };
    let mut controller = Controller::new(Policy { horizon, ..wide }, EXPECTED);
    controller.arrive(job(1, 3));
    let decision = decide(&mut controller);
    assert_eq!(places(&decision.actions), [1], "{decision:?}");
    let rejects = |action: &Action| matches!(action, Action::Reject { .. });
    let mut grows = std::iter::from_fn(|| {
        controller.stepped(0, EXPECTED);
        Some(decide(&mut controller))
    });
    assert!(grows.by_ref().take(50).any(|decision| decision.actions.iter().any(rejects)));
}

#[test]
fn times_and_promises_may_be_long() {
    let slow = Measured { layer_ns: 10_000_000_019, block_ns: Some(u64::MAX) };
    for expected in [slow, Measured { layer_ns: u64::MAX, block_ns: Some(1) }] {
        let mut controller = Controller::new(policy(100), expected);
        controller.arrive(Job { slo_ns: Some(u64::MAX), ..job(1, 3) });
        assert_eq!(places(&decide(&mut controller).actions), [1]);
        for step in 1..4 {
            controller.stepped(step, expected);
            decide(&mut controller);
        }
        assert_eq!(controller.release(u64::MAX / 4), [(1, 1)]);
        assert_eq!(controller.release(u64::MAX / 4), []);
    }
}

/// PLAN-C6.
#[test]
fn more_requests_than_can_be_planned_wait() {
    let mut controller = Controller::new(policy(1 << 20), EXPECTED);
    let all = REQUESTS_MAX as u64 + 3;
    (0..all).for_each(|id| controller.arrive(job(id, 1)));
    decide(&mut controller);
    assert_eq!((controller.running().count(), controller.paused().count()), (REQUESTS_MAX, 3));
    controller.finish(5);
    decide(&mut controller);
    assert_eq!((controller.running().count(), controller.paused().count()), (REQUESTS_MAX, 2));
    assert!(controller.running().any(|id| id == REQUESTS_MAX as u64), "the first that waited");
}

/// Under permanent pressure each request runs again and again (PLAN-C4).
#[test]
fn nobody_starves() {
    for run_steps_min in [0, 2] {
        nobody_starves_with(run_steps_min);
    }
}

fn nobody_starves_with(run_steps_min: u32) {
    let horizon = Horizon { block_tokens: 100_000, ..Horizon::default() };
    let mut numbers = Numbers(11);
    for round in 0..20 {
        let policy = Policy {
            horizon: horizon.clone(),
            pause_steps_max: 6,
            run_steps_min,
            ..Policy::new(9, 60)
        };
        let mut controller = Controller::new(policy, EXPECTED);
        let jobs = numbers.next(3, 7);
        for id in 0..jobs {
            let blocks = numbers.next(2, 7);
            controller.arrive(Job { id, tokens: (blocks - 1) * 100_000, slo_ns: None });
        }
        let mut waited = vec![0; usize::try_from(jobs).unwrap()];
        let mut waits = 0;
        for _ in 0..400 {
            decide(&mut controller);
            assert!(controller.running().count() > 0, "round {round}");
            controller.stepped(0, EXPECTED);
            waited.iter_mut().for_each(|waited| *waited += 1);
            controller.running().for_each(|id| waited[usize::try_from(id).unwrap()] = 0);
            let longest = waited.iter().copied().max().unwrap();
            waits = waits.max(longest);
            // Its own pause, and the runs of those that were paused before it.
            assert!(longest <= 6 + 3 * jobs, "round {round}: {waited:?}");
        }
        assert!(waits > 0 || jobs < 6, "round {round}: there was no pressure");
    }
}

#[test]
fn a_deposit_releases_at_the_promised_rate() {
    let mut deposit = Deposit::new(10_u64);
    for ready in [5, 8, 9, 40, 41] {
        deposit.put(ready);
    }
    assert_eq!(deposit.tokens(), 5);
    let mut released = Vec::new();
    while let Some(token) = deposit.release(&100) {
        released.push((token.at, token.late));
    }
    // Ready at 40, ten after the third token: on time is 35.
    let expected = [(5, false), (15, false), (25, false), (40, true), (50, false)];
    assert_eq!(released, expected);
    assert_eq!((deposit.tokens(), deposit.late(), deposit.next_release()), (0, 1, None));
    deposit.put(51);
    assert_eq!((deposit.next_release(), deposit.release(&59)), (Some(60), None));
}
