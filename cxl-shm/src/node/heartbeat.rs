//! The heartbeat of a host: a word that one of its processes changes while the host lives.

use super::backend::Backend;
use super::handle::NodeHandle;

/// How long a heartbeat may stand still, on the watcher's own clock, before its owner is suspected.
pub const SUSPECT_MS: u64 = 1500;

/// For how many beats of its host's heartbeat no lock manager lives on a host before the host gives
/// up the recoveries that it was appointed to: ten seconds, time enough to start one again.
pub const RESIGN_BEATS: u64 = 1024;

/// How often an agent sends the heartbeat.
pub const HEARTBEAT_MS: u64 = 10;

/// The heartbeat of this host advances by one; how often it has by now. Only of the agent, of one
/// that was deposed and does not know it yet (BEAT-G2), and of a process that is alone on its host.
pub(crate) fn send_heartbeat<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> u64 {
    let heartbeat = handle.heartbeat();
    // From the published word, not from our own count: another process may have been agent.
    let beats = heartbeat.own(fabric).wrapping_add(1);
    heartbeat.publish(fabric, beats);
    beats
}
