//! The region that this process is attached to, and its threads as members.
#![expect(
    unsafe_code,
    reason = "functions that C calls, and a member that outlives the guards which borrow it"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_char;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::MappedFabric;
use cxl_shm::fork::ProcessMark;
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::lock::SharedGuard;
use cxl_shm::node::MappedBackend;
use cxl_shm_objects::ObjectChunks;

use crate::error::{CxlShmError, Failure, code};
use crate::log;
use crate::per_process::PerProcess;
use crate::text::text_at;

/// A lock that a thread holds.
pub(crate) type Guard = SharedGuard<'static, MappedBackend>;

/// The attachment of the process (CAPI-I4).
static ATTACHED: PerProcess<Attached> = PerProcess::new();

/// Whether and how a process is attached.
#[derive(Default)]
struct Attached {
    /// It is, or is about to be. For its children, to which the lock may stay closed (CAPI-I10).
    is_begun: AtomicBool,
    process: Mutex<Option<Arc<Process>>>,
}

impl Attached {
    fn process(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a process is attached of which this one is a child.
fn is_child_of_attached() -> bool {
    ATTACHED.of_ancestors().any(|attached| attached.is_begun.load(Ordering::Acquire))
}

/// This process, attached.
pub(crate) struct Process {
    /// Asked when a thread comes or goes.
    attachment: Mutex<Attachment>,
    fabric: MappedFabric,
    mark: ProcessMark,
}

impl Process {
    fn attachment(&self) -> MutexGuard<'_, Attachment> {
        self.attachment.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread of this process, as a member.
pub(crate) struct Thread {
    /// Locks that it holds. Dropped before the member that they borrow.
    pub(crate) held: HashMap<u32, Guard>,
    member: Option<&'static LocalMember>,
    process: Arc<Process>,
}

/// The one clock of the process: what a lock's holder measures with must outlive it.
pub(crate) fn clock() -> &'static SystemClock {
    static CLOCK: PerProcess<SystemClock> = PerProcess::new();
    CLOCK.made(SystemClock::start)
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

impl Thread {
    /// This thread, as a member of its own (CAPI-I1).
    fn join(process: Arc<Process>) -> Result<Self, Failure> {
        let member = process.attachment().join_thread();
        let member = member.map_err(|error| Failure::new(CxlShmError::Region, error))?;
        Ok(Self {
            held: HashMap::new(),
            // Taken back in `drop`.
            member: Some(Box::leak(Box::new(member))),
            process,
        })
    }

    /// The thread as a member.
    pub(crate) fn member(&self) -> &'static LocalMember {
        self.member.expect("taken only by drop")
    }

    /// The mapping, for addresses.
    pub(crate) fn fabric(&self) -> &MappedFabric {
        &self.process.fabric
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The end of a thread comes in a child of fork, too: what is held there is the parent's
        // (CAPI-I4).
        if !self.process.mark.is_of_this() {
            std::mem::forget(std::mem::take(&mut self.held));
            self.member = None;
            // The last one would leave for the parent, and wait for a thread that is not here.
            std::mem::forget(Arc::clone(&self.process));
            return;
        }
        self.held.clear();
        if let Some(member) = self.member.take() {
            let member = std::ptr::from_ref(member).cast_mut();
            // SAFETY: it came from `Box::leak` in `join`; this is the only place that takes it
            // back, once, and the guards, which alone borrowed it beyond a call, are gone.
            let member = unsafe { Box::from_raw(member) };
            self.process.attachment().leave_thread(*member);
        }
    }
}

/// Calls `f` with the calling thread as a member.
pub(crate) fn with_thread<T>(
    f: impl FnOnce(&mut Thread) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let process = ATTACHED.get().and_then(|attached| attached.process().clone());
    let process = process.ok_or_else(|| {
        let message = if is_child_of_attached() {
            "this process is a child of fork, and only its parent is attached: call exec, or \
             attach before anything else in a process of its own"
        } else {
            "this process is not attached to a region: call cxl_shm_attach first"
        };
        Failure::new(CxlShmError::NotAttached, message)
    })?;
    THREAD.with_borrow_mut(|thread| {
        // One that was attached to another region before.
        if thread.as_ref().is_some_and(|thread| !Arc::ptr_eq(&thread.process, &process)) {
            *thread = None;
        }
        match thread {
            Some(thread) => f(thread),
            None => f(thread.insert(Thread::join(process)?)),
        }
    })
}

/// Attaches this process to the region at `region` (a devdax device or a file) as a process of
/// node `node`. Every host of the rack has a node number of its own, and its processes share it.
///
/// # Safety
/// `region` is null or points to a text that ends with a NUL.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_attach(region: *const c_char, node: u16) -> CxlShmError {
    // SAFETY: by the caller's promise.
    let region = unsafe { text_at(region, "the path of the region") };
    code(region.and_then(|region| attach(Path::new(region), node)))
}

fn attach(region: &Path, node: u16) -> Result<(), Failure> {
    let refused = |message: &str| Err(Failure::new(CxlShmError::BadArgument, message));
    if is_child_of_attached() {
        return refused(
            "this process is a child of fork of an attached one: attach in a process of its own",
        );
    }
    let attached = ATTACHED.made(Attached::default);
    let mut process = attached.process();
    if process.is_some() {
        return refused("this process is attached already: call cxl_shm_detach first");
    }
    attached.is_begun.store(true, Ordering::Release);
    log::start();
    let attachment = Attachment::attach_with(region, node, ObjectChunks).map_err(|error| {
        attached.is_begun.store(false, Ordering::Release);
        Failure::new(CxlShmError::Region, error)
    })?;
    let fabric = attachment.region().fabric().clone();
    let (attachment, mark) = (Mutex::new(attachment), ProcessMark::of_this());
    *process = Some(Arc::new(Process { attachment, fabric, mark }));
    Ok(())
}

/// Detaches this process. Locks of the calling thread are released. Other threads that have called
/// stay members until they end or call again; the region stays mapped until then. Pointers into it
/// are not valid afterwards.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_detach() -> CxlShmError {
    code(with_thread(|_| Ok(())).map(|()| {
        THREAD.take();
        if let Some(attached) = ATTACHED.get() {
            let mut process = attached.process();
            attached.is_begun.store(false, Ordering::Release);
            process.take();
        }
    }))
}
