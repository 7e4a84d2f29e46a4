//! Giving up a recovery: this node was appointed, and no lock manager runs on its host any more.
//!
//! The host lives, so nobody may continue in its place before it says so (DEATH-R4). Any of its
//! processes can say so: the right to manage, which it takes meanwhile, shows that the process
//! which was at the recovery is gone.

use crate::host::HostLockName;
use crate::layout::{Case, RecoveryRecord, RecoveryStep};
use crate::lifecycle::consensus::Ballots;
use crate::lifecycle::recovery::double_buffer;
use crate::lifecycle::write_back::flush_recoverer;
use crate::node::Slot;
use crate::node::{Backend, Member};
use crate::units::NodeId;

/// Gives up every recovery that this node was appointed to and has not finished, unless a lock
/// manager runs on this host. Returns whose. Called by the agent: the heartbeat advances meanwhile.
pub(crate) fn resign<B: Backend>(member: &Member<B>) -> Vec<NodeId> {
    let Some(_alone) = member.try_lock_host(HostLockName::Manager) else { return Vec::new() };
    let (layout, fabric) = (member.layout(), member.fabric());
    let (me, mine) = (member.node(), member.incarnation());
    let slots = Slot::all(layout, fabric);
    let lived_in: Vec<&Slot> = slots.iter().filter(|it| it.node != me && !it.vacant).collect();
    let ballots = Ballots::fresh(layout, fabric, lived_in.iter().map(|slot| slot.node));
    let mut resigned = Vec::new();
    for Slot { node: victim, incarnation, .. } in lived_in.into_iter().copied() {
        let opened = ballots.last_case(victim);
        let between = || {
            member.tick_in_slot();
        };
        if opened.is_some_and(|last| give_up_earlier(member, victim, last, between)) {
            resigned.push(victim);
            continue;
        }
        let last = ballots.last_case(victim).filter(|case| case.incarnation >= incarnation);
        let decision = last.and_then(|case| ballots.decision(victim, case));
        let Some(decision) = decision
            .filter(|it| (it.appointment.recoverer, it.appointment.incarnation) == (me, mine))
        else {
            continue;
        };
        let double_buffer = double_buffer(member, victim);
        // MEM-M8: the lines of the dead, and those that its updates concern, pass to the next
        // recoverer (MEM-M1). What the process before us wrote there and did not publish must not
        // reach the device after the writes of that recoverer. It may be a lot, and the agent is
        // here.
        let of_case = |own: &RecoveryRecord| own.case() == decision.case;
        let own = flush_recoverer(layout, fabric, &double_buffer, victim, of_case, between);
        let step = own.and_then(|own| own.step()).unwrap_or(RecoveryStep::Unfenced);
        let next = match step {
            // Whom it yielded to did not come, or was refused: the slot has the life of the case
            // still, or one before it. It had written nothing.
            RecoveryStep::Unfenced | RecoveryStep::Superseded => RecoveryStep::ResignedUnfenced,
            _ if step.is_under_way() => RecoveryStep::ResignedFenced,
            _ => continue,
        };
        double_buffer.publish(fabric, RecoveryRecord::new(decision.case, mine, next));
        resigned.push(victim);
    }
    resigned
}

/// Gives up the recovery of `victim` that this node is at in a case before `last`, if it is: a
/// process of it died there, and no recoverer is appointed in that case any more (DEATH-C2), while
/// the process in `last` waits for it (DEATH-R4). Says whether it was. The caller has the right to
/// manage. Calls `between` after every few milliseconds' work.
pub(crate) fn give_up_earlier<B: Backend>(
    member: &Member<B>,
    victim: NodeId,
    last: Case,
    between: impl Fn(),
) -> bool {
    let (layout, fabric) = (member.layout(), member.fabric());
    let double_buffer = double_buffer(member, victim);
    let broke_off = |own: &RecoveryRecord| {
        own.case().incarnation < last.incarnation
            && own.step().is_some_and(RecoveryStep::is_under_way)
    };
    // MEM-M8, as above.
    let Some(own) = flush_recoverer(layout, fabric, &double_buffer, victim, broke_off, between)
    else {
        return false;
    };
    let resigned = RecoveryStep::ResignedFenced;
    double_buffer
        .publish(fabric, RecoveryRecord::new(own.case(), own.recoverer_incarnation(), resigned));
    true
}
