//! Torture: real processes over one file, killed with SIGKILL at any moment and at named points.
//!
//! A parent ([`Rack`]) starts workers and lock managers, kills and restarts them, and keeps a
//! ledger of what each worker said it was about to do and had done. A worker says so on a pipe,
//! which outlives it. What was acknowledged must be there, what was begun may be, nothing else.
//!
//! On *mapped* memory several processes share a node, and a death is that of a process: caches and
//! the host tier stay. On *shadowed* memory every process is a host of its own, and a death is
//! that of a host: dirty lines and the host tier are gone, the next life is another boot.
//!
//! The seed decides who is killed and after how long, and what each worker wants. It does not
//! decide how the kernel runs the processes: a failure may take several runs of its seed to come
//! again.
//!
//! Where hosts are declared dead, whole hosts die: all processes of a node, which then stays away
//! until others have recovered it. Mapped hosts are fenced by killing, as in production, shadowed
//! ones by their parent's word.
//!
//! | file | what is there |
//! |---|---|
//! | `ground` | what parent and children know alike: sizes, places, contents |
//! | `event` | what a child tells its parent |
//! | `child`, `life` | a child: its command line, how it attaches |
//! | `worker`, `blocks`, `objects`, `manager` | what children do |
//! | `named`, `fence` | names and contents of objects; the fence of hosts that are processes |
//! | `bed`, `process`, `ledger`, `roots`, `rack` | the parent: the file, processes, what must be, all together |
//! | `audit`, `conservation`, `usable` | what must be in the region at the end: blocks and counters, every byte, and that what is free can be used |
//! | `rest`, `evictions` | what must be in the pool whenever everybody rests; which blocks may be missing |
//! | `storm`, `broken` | kills at random, with a broken rule too; `prove torture` |
//! | `coverage`, `scene` | a death at every crash point |

mod audit;
mod bed;
mod blocks;
mod broken;
mod child;
mod conservation;
pub mod coverage;
mod event;
mod evictions;
mod fence;
mod ground;
mod ledger;
mod life;
mod manager;
mod named;
mod objects;
mod process;
mod rack;
mod rest;
mod roots;
mod scene;
pub mod storm;
mod usable;
mod worker;

pub use broken::{mutant_noticed, needs_scarce_chunks};
pub use child::{ChildOptions, run_child};
pub use ground::{Memory, WORKERS_MAX};
pub use rack::Rack;
