//! A lock manager, active or standing by.

use std::sync::atomic::Ordering;

use anyhow::Result;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::member::NoFence;
use kv_cache::reclaim_dead_processes;
use lock_manager::{Duty, DutyChange, Patience};

use super::child::{ChildMember, Stop};
use super::event::{Event, tell};

/// A standby takes over soon. Nobody is declared dead: each of the dead lives again on its node, and
/// completes what it left.
const PATIENCE: Patience = Patience { takeover_ms: 100, declare_ms: u64::MAX };
/// How often it looks whether processes of its host have died.
const RECLAIM_MS: u64 = 200;

pub(super) fn run<F: Fabric>(member: &ChildMember<F>, stop: &Stop) -> Result<()> {
    let clock = SystemClock::start();
    let mut duty = Duty::new(member, &clock, PATIENCE)?;
    tell(&Event::Up)?;
    let (mut tries, mut reclaim_at_ms) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let now_ms = clock.now_ms();
        if now_ms >= reclaim_at_ms {
            reclaim_dead_processes(member, &clock);
            reclaim_at_ms = now_ms + RECLAIM_MS;
        }
        let stepped = duty.step(now_ms, &mut NoFence)?;
        if let Some(DutyChange::Serving { term }) = stepped.change {
            tell(&Event::Serving(term))?;
        }
        tries = if stepped.busy { 0 } else { tries + 1 };
        clock.pause(tries);
    }
    Ok(())
}
