//! Several ranks in one process install one plan, and a late one causes the next.

use super::*;

const LAYERS: u16 = 9;
const EXPECTED: Measured = Measured { layer_ns: 3000, block_ns: Some(1000) };
const RANKS: usize = 4;

/// A lead with two requests that fit when one of them is offloaded in part.
fn lead() -> Lead {
    let horizon = Horizon { block_tokens: 1000, ..Horizon::default() };
    let policy = Policy { horizon, ..Policy::new(LAYERS, 60) };
    let mut lead = Lead::new(Controller::new(policy, EXPECTED), LAYERS);
    for (id, blocks) in [(1, 3), (2, 6)] {
        lead.arrive(Job { id, tokens: (blocks - 1) * 1000, slo_ns: None });
    }
    lead
}

fn decide(lead: &mut Lead) -> (Option<Trigger>, Option<PlanMessage>) {
    let (decision, message) = lead.decide(&mut || true).unwrap();
    (decision.trigger, message)
}

#[test]
fn a_late_rank_causes_a_new_plan_that_all_ranks_install() {
    let mut lead = lead();
    let mut ranks = vec![Rank::new(LAYERS); RANKS];
    let (trigger, message) = decide(&mut lead);
    assert_eq!(trigger, Some(Trigger::BatchChange));
    let bytes = message.unwrap().encode();
    let moves: Vec<_> = ranks.iter_mut().map(|rank| rank.install(&bytes).unwrap()).collect();
    assert!(!moves[0].is_empty() && moves.iter().all(|other| *other == moves[0]), "{moves:?}");
    assert_eq!(decide(&mut lead), (None, None));

    // The link of one rank is slower.
    let mut times = [EXPECTED; RANKS];
    times[2].block_ns = Some(3000);
    let mut iterations = 0;
    let message = loop {
        lead.stepped(iterations, &times);
        iterations += 1;
        let (trigger, message) = decide(&mut lead);
        assert!(trigger.is_none_or(|trigger| trigger == Trigger::ProfileMismatch), "{trigger:?}");
        match message {
            None => assert!(iterations < 20, "the late rank was not noticed"),
            Some(message) => break message,
        }
    };
    assert_eq!(message.version, 2);
    let bytes = message.encode();
    for rank in &mut ranks {
        assert!(!rank.install(&bytes).unwrap().is_empty(), "a slower link needs another plan");
        assert_eq!((rank.version(), rank.batch()), (2, message.installed.batch()));
    }
}

#[test]
fn readers_get_tokens_at_the_promised_rate() {
    let mut lead = lead();
    lead.arrive(Job { id: 3, tokens: 1000, slo_ns: Some(100_000) });
    decide(&mut lead);
    let quick = [EXPECTED; RANKS];
    // Request 2 is paused.
    (1..=3).for_each(|step| lead.stepped(step * 27_000, &quick));
    assert_eq!((lead.release(81_000), lead.deposited(3)), (vec![(1, 3), (3, 1)], 2));
    assert_eq!((lead.release(130_000), lead.deposited(3)), (vec![(3, 1)], 1));
}

#[test]
fn ranks_are_as_slow_as_the_slowest() {
    let of = |layer_ns, block_ns| Measured { layer_ns, block_ns };
    assert_eq!(slowest(&[]), None);
    let ranks = [of(5, None), of(3, Some(9)), of(4, Some(2))];
    assert_eq!(slowest(&ranks), Some(of(5, Some(9))));
    assert_eq!(slowest(&[of(1, None), of(2, None)]), Some(of(2, None)));
}

#[test]
fn a_request_that_is_over_is_in_no_plan() {
    let mut lead = lead();
    let mut rank = Rank::new(LAYERS);
    rank.install(&decide(&mut lead).1.unwrap().encode()).unwrap();
    lead.finish(2);
    let message = decide(&mut lead).1.unwrap();
    let moves = rank.install(&message.encode()).unwrap();
    assert!(moves.iter().all(|step| matches!(step, Move::Come { request: 1, .. })), "{moves:?}");
    assert_eq!(rank.batch(), [(1, Placement::default())]);
}

#[test]
fn a_plan_that_is_not_the_next_one_is_refused_and_changes_nothing() {
    let mut lead = lead();
    let mut rank = Rank::new(LAYERS);
    let first = decide(&mut lead).1.unwrap();
    rank.install(&first.encode()).unwrap();
    let had = rank.clone();
    for version in [1, 3, u64::MAX] {
        let refused = rank.install(&PlanMessage { version, ..first.clone() }.encode());
        assert_eq!(refused, Err(InstallError::Version { got: version, expected: 2 }));
    }
    let other = PlanMessage { version: 2, layers: 10, ..first };
    let refused = rank.install(&other.encode());
    assert_eq!(refused, Err(InstallError::Layers { got: 10, expected: 9 }));
    assert_eq!(rank, had);
}

#[test]
fn a_bad_message_is_refused() {
    let message = PlanMessage {
        version: 1,
        layers: LAYERS,
        installed: Installed::of(5, &offload(LAYERS, &[3, 6])),
    };
    let good = message.encode();
    assert_eq!(PlanMessage::decode(&good), Ok(message));
    for length in 0..good.len() {
        let cut = PlanMessage::decode(&good[..length]);
        assert!(matches!(cut, Err(MessageError::Unreadable { .. })), "{length}: {cut:?}");
    }
    let padded = [&good[..], &[0; 3]].concat();
    assert_eq!(PlanMessage::decode(&padded), Err(MessageError::TooLong { bytes: 3 }));
    // Form, version, layers, one request: its name, its first plan, that it runs, two layers.
    assert_eq!(good, [2, 1, 9, 0x81, 5, 1, 0xf5, 0x82, 3, 6]);
    for (bytes, told) in [
        (vec![1, 1, 9, 0x80], "form 1"),
        (vec![2, 1, 9, 0x81, 5, 1, 0xf5, 0x82, 6, 3], "layer 3 of 9"),
        (vec![2, 1, 9, 0x81, 5, 1, 0xf5, 0x82, 3, 3], "layer 3 of 9"),
        (vec![2, 1, 9, 0x81, 5, 1, 0xf5, 0x81, 0], "layer 0 of 9"),
        (vec![2, 1, 9, 0x81, 5, 1, 0xf5, 0x81, 10], "layer 10 of 9"),
        (vec![2, 1, 9, 0x81, 5, 1, 0xf5, 0x8a], "10 entries"),
        (vec![2, 1, 9, 0x82, 5, 1, 0xf5, 0x80, 5, 1, 0xf5, 0x80], "request 5"),
        (vec![2, 1, 9, 0x9b, 255, 255, 255, 255, 255, 255, 255, 255], "entries"),
        (vec![2, 1, 9, 0x9f, 0xff], "no length"),
        (vec![2, 1, 0x1a, 0, 1, 0, 0, 0x80], "cannot be read"),
        (vec![2, 1, 9, 0x81, 5, 0, 0xf5, 0x80], "plan 0 told"),
        (vec![2, 1, 9, 0x81, 5, 2, 0xf5, 0x80], "plan 2 told"),
        (b"a message of another kind".to_vec(), "cannot be read"),
    ] {
        let refused = PlanMessage::decode(&bytes).unwrap_err().to_string();
        assert!(refused.contains(told), "{bytes:?}: {refused}");
    }
}
