//! A lock manager, active or standing by.

use anyhow::Result;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::layout::RecoveryStep;
use cxl_shm::lifecycle::{DeathEvent, Fence, RecoveryEvent};
use cxl_shm::node::{Backend, Member, SUSPECT_MS};
use kv_cache::reclaim_dead_processes;
use lock_manager::{ManagerRole, RoleChange, Timeouts};

use super::child::Orders;
use super::event::{Event, tell};

/// A standby takes over soon.
const TAKEOVER_MS: u64 = 100;
/// How often it looks whether processes of its host have died.
const RECLAIM_MS: u64 = 200;

/// Manages until `orders` say to stop. With `declares` a host whose heartbeat has stopped is
/// declared dead and, once `fence` holds, recovered; without, each of the dead lives again and
/// completes what it left.
pub(super) fn run<B: Backend>(
    member: &Member<B>,
    declares: bool,
    fence: &mut impl Fence,
    orders: &Orders,
) -> Result<()> {
    let clock = SystemClock::start();
    let declare_ms = if declares { SUSPECT_MS } else { u64::MAX };
    let timeouts = Timeouts { takeover_ms: TAKEOVER_MS, declare_ms };
    let mut role = ManagerRole::new(member, &clock, timeouts)?;
    tell(&Event::Up)?;
    let (mut tries, mut reclaim_at_ms) = (0, 0);
    while !orders.stops() {
        let now_ms = clock.now_ms();
        if now_ms >= reclaim_at_ms {
            reclaim_dead_processes(member, &clock);
            reclaim_at_ms = now_ms + RECLAIM_MS;
        }
        let outcome = role.step(now_ms, fence)?;
        if let Some(RoleChange::Serving { term }) = outcome.change {
            tell(&Event::Serving(term))?;
        }
        for (node, event) in outcome.deaths {
            match event {
                DeathEvent::Declared(_) => tell(&Event::DeclaredDead(node.0))?,
                DeathEvent::Recovery(RecoveryEvent::Reached(RecoveryStep::Done)) => {
                    tell(&Event::Recovered(node.0))?;
                }
                DeathEvent::Suspected | DeathEvent::Unreadable { .. } | DeathEvent::Recovery(_) => {
                }
            }
        }
        tries = if outcome.busy { 0 } else { tries + 1 };
        clock.pause(tries);
    }
    Ok(())
}
