//! Torture of the drive tier: real agents with real folders, beside real engine processes over one
//! region on mapped memory, killed with SIGKILL at any moment and at named points.
//!
//! Two hosts, each with an agent. The drives of host A have room for everything, so nothing that
//! they acknowledged may ever be missing; they also fail: errors of reads and writes, torn writes, calls
//! that hang, a device that vanishes. The drive of host B is far too small, so its blocks make room for
//! others all the time. Its file system is full at times, it flips bits and loses writes: there nothing
//! wrong may be read, and nothing more is promised.
//!
//! Engines serve prompts: they look up, restore, fetch and compare each byte, and publish what was
//! missing. The pool has room for a part of the prompts.
//!
//! A block counts as acknowledged when a host was seen to find it on a drive of A: it is announced
//! after it is durable. The list of these ([`shadow`]) survives every death, and is the oracle.
//!
//! At a *roll call* no drive fails and the agents live: everything acknowledged must be found, a sample
//! of it must come back with the right bytes, and no drive may have more than its room. At the end all
//! of it must be in the folders, read as a tool does; the pool must be empty after a clear, with every
//! byte accounted for; and in a region formatted anew every acknowledged block must come back.
//!
//! | file | what is there |
//! |---|---|
//! | `ground` | what parent and children know alike: sizes, contents, settings |
//! | `event` | what children tell, and what an agent is told |
//! | `child`, `agent`, `engine` | the children |
//! | `shadow` | what is acknowledged |
//! | `bed`, `rack` | the region and the folders; the processes |
//! | `roll` | what must be whenever no drive fails |
//! | `storm` | kills and faults at random; `prove torture --drives` |
//! | `audit` | what must be in the end |

mod agent;
mod audit;
mod bed;
mod child;
mod engine;
mod event;
mod ground;
mod rack;
mod roll;
mod shadow;
pub mod storm;

pub use child::{ChildOptions, run_child};
