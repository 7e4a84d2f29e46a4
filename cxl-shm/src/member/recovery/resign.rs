//! Giving up a recovery: this node was appointed, and no lock manager runs on its host any more.
//!
//! The host lives, so nobody may go on in its place before it says so (R4). Any of its processes can
//! say so: the right to manage, which it takes meanwhile, shows that the process which was at the
//! recovery is gone.

use super::twin;
use crate::fabric::{Fabric, HostMemory};
use crate::layout::{Case, RecoveryRecord, RecoveryStep};
use crate::member::consensus::Ballots;
use crate::member::settle::settle_recovery;
use crate::member::slot::Slot;
use crate::member::{HostLockName, Liveness, Member};
use crate::units::NodeId;

/// Gives up every recovery that this node was appointed to and has not finished, unless a lock
/// manager runs on this host. Returns whose. Called by the agent: the heart beats meanwhile.
pub(crate) fn resign<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
) -> Vec<NodeId> {
    let Some(_alone) = member.try_lock_host(HostLockName::Manager) else { return Vec::new() };
    let (layout, fabric) = (member.layout(), member.fabric());
    let (me, mine) = (member.node(), member.incarnation());
    let slots = Slot::all(layout, fabric);
    let lived_in: Vec<&Slot> = slots.iter().filter(|it| it.node != me && !it.vacant).collect();
    let ballots = Ballots::fresh(layout, fabric, lived_in.iter().map(|slot| slot.node));
    let mut resigned = Vec::new();
    for Slot { node: victim, incarnation, .. } in lived_in.into_iter().copied() {
        let opened = ballots.last_case(victim);
        if opened.is_some_and(|last| give_up_earlier(member, victim, last, || member.tick())) {
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
        let twin = twin(member, victim);
        // What the process before us wrote may still be in our caches only.
        twin.settle(fabric);
        let own = twin.own(fabric).ok().flatten().filter(|own| own.case() == decision.case);
        let step = own.and_then(|own| own.step()).unwrap_or(RecoveryStep::Unfenced);
        let next = match step {
            RecoveryStep::Unfenced => RecoveryStep::ResignedUnfenced,
            _ if step.is_under_way() => RecoveryStep::ResignedFenced,
            _ => continue,
        };
        if next == RecoveryStep::ResignedFenced {
            // M8: the lines of the dead, and those that its updates concern, pass to the next
            // recoverer (M1). What the process before us wrote there and did not publish must not
            // reach the device after what that one writes. It may be a lot, and the agent is here.
            settle_recovery(layout, fabric, victim, || member.tick());
        }
        twin.publish(fabric, RecoveryRecord::new(decision.case, mine, next));
        resigned.push(victim);
    }
    resigned
}

/// Gives up the recovery of `victim` that this node is at in a case before `last`, if it is: a process of
/// it died there, and nobody is appointed in that case any more (C2), while who is in `last` waits for it
/// (R4). Says whether it was. The caller has the right to manage. Calls `between` after every few
/// milliseconds' work.
pub(crate) fn give_up_earlier<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    victim: NodeId,
    last: Case,
    between: impl Fn(),
) -> bool {
    let (layout, fabric) = (member.layout(), member.fabric());
    let twin = twin(member, victim);
    // What the process before us wrote may still be in our caches only.
    twin.settle(fabric);
    let own =
        twin.own(fabric).ok().flatten().filter(|own| own.case().incarnation < last.incarnation);
    let under_way = |own: &RecoveryRecord| own.step().is_some_and(RecoveryStep::is_under_way);
    let Some(own) = own.filter(under_way) else { return false };
    // M8, as above.
    settle_recovery(layout, fabric, victim, between);
    let resigned = RecoveryStep::ResignedFenced;
    twin.publish(fabric, RecoveryRecord::new(own.case(), own.recoverer_incarnation(), resigned));
    true
}
