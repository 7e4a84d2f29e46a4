//! The handler of SIGBUS, which contains faults of mapped regions (rules FAULT-F1 to FAULT-F6 in
//! `fabric/faults.rs`).
#![expect(unsafe_code, reason = "a signal handler, and mappings that it replaces")]
#![expect(clippy::disallowed_types, reason = "words that a signal handler reads and writes")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::faults::{RegionEntry, TierEntry};

/// The handler that was there before this one. Allocated once, and never freed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// The handler of another library was found in place of this one, and told.
static WAS_TOLD: AtomicBool = AtomicBool::new(false);

/// Places in the registry of a host, and the words of each.
const PLACES: usize = 256;
const PLACE_WORDS: usize = 2;
/// The bits of a place's word that name its process.
const IDENTITY: u64 = (1 << 62) - 1;
/// The identity of a process that never lives: no process has the number zero.
const NOBODY_ALIVE: u64 = 1;

/// Installs the handler, once a process. Engines, CUDA and Python may have handlers of their own:
/// the one that is there now gets each fault that is not of a region (FAULT-F1).
///
/// # Errors
/// The system's error.
pub(super) fn install() -> std::io::Result<()> {
    let present = present()?;
    if present.sa_sigaction == handle as *const () as usize {
        return Ok(());
    }
    if !PREVIOUS.load(Ordering::Acquire).is_null() {
        if !WAS_TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "another library of this process has installed a handler of SIGBUS over Rackline's. \
                 A memory error of the pool ends this process, unless that library calls the handler \
                 before its own"
            );
        }
        return Ok(());
    }
    // Two threads may do this at once: both found the same handler.
    PREVIOUS.store(Box::into_raw(Box::new(present)), Ordering::Release);
    // SAFETY: all zeros is a `sigaction`.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handle as *const () as usize;
    // On the thread's alternate stack, where it has one: a handler before ours may need it.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `ours` is whole, and the handler calls only what may be called in one (FAULT-F1).
    let refused = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
    if refused == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn present() -> std::io::Result<libc::sigaction> {
    // SAFETY: all zeros is a `sigaction`.
    let mut present: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the system fills `present`.
    match unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut present) } {
        0 => Ok(present),
        _ => Err(std::io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the address of the thread's own word.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own word; what it had is stored again below.
    let errno = unsafe { *errno_at };
    // SAFETY: the system passes the whole `siginfo_t` of a SIGBUS.
    let info_of_fault = unsafe { &*info };
    // SAFETY: of a SIGBUS, as above.
    let contained = unsafe { Fault::of(info_of_fault) }.is_some_and(|fault| fault.contain());
    if !contained {
        // SAFETY: as the system called us.
        unsafe { pass_on(signal, info, context) };
    }
    // SAFETY: as above.
    unsafe { *errno_at = errno };
}

/// An access that the system could not carry out.
#[derive(Clone, Copy)]
struct Fault {
    address: usize,
    /// Bytes that are lost, as the system says; zero when it does not.
    bytes: usize,
}

impl Fault {
    /// What the system says; `None` when a program sent the signal.
    ///
    /// # Safety
    /// `info` is of a SIGBUS.
    unsafe fn of(info: &libc::siginfo_t) -> Option<Self> {
        const BUS_OBJERR: libc::c_int = 3;
        let is_poison = matches!(info.si_code, libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO);
        if !is_poison && !matches!(info.si_code, libc::BUS_ADRERR | BUS_OBJERR) {
            return None;
        }
        // SAFETY: each of these codes comes with an address.
        let address = unsafe { info.si_addr() }.addr();
        let bytes = if is_poison { 1_usize.checked_shl(lost_bits(info)).unwrap_or(0) } else { 0 };
        Some(Self { address, bytes })
    }

    /// Whether the fault is one of a region of this process, and its memory is replaced now.
    fn contain(self) -> bool {
        let Some((index, entry)) = RegionEntry::claim(self.address) else { return false };
        // SAFETY: may be called in a handler.
        let process = unsafe { libc::getpid() };
        // FAULT-F1: the mapping of a child is its parent's.
        let ours = entry.process.load(Ordering::Relaxed) == process.cast_unsigned();
        // FAULT-F6: false where the system refuses.
        let contained = ours && self.replace(index, entry);
        entry.release();
        contained
    }

    fn replace(self, index: usize, entry: &RegionEntry) -> bool {
        let start = entry.start.load(Ordering::Relaxed);
        let bytes = entry.bytes.load(Ordering::Relaxed);
        let protection = entry.protection.load(Ordering::Relaxed).cast_signed();
        let unit = self.bytes.max(entry.page_bytes.load(Ordering::Relaxed));
        let first = (self.address & !(unit - 1)).max(start);
        let end = (self.address | (unit - 1)).saturating_add(1).min(start + bytes);
        if entry.record(first - start, end - first) {
            return replace_mapping(first, end - first, protection);
        }
        // FAULT-F4, in this order.
        entry.record_cut(self.address - start);
        let mut is_replaced = replace_mapping(start, bytes, protection);
        TierEntry::each_of(index, |tier| {
            let (start, bytes) =
                (tier.start.load(Ordering::Relaxed), tier.bytes.load(Ordering::Relaxed));
            is_replaced &= replace_mapping(start, bytes, libc::PROT_READ | libc::PROT_WRITE);
        });
        if is_replaced {
            TierEntry::each_of(index, mark_dead);
        }
        is_replaced
    }
}

/// How many bits of the address say where in the lost range it is: `si_addr_lsb`, which the C
/// library's bindings have no name for.
fn lost_bits(info: &libc::siginfo_t) -> u32 {
    /// The fields of a SIGBUS, as the system lays them out on 64 bits.
    #[repr(C)]
    struct Fields {
        head: [libc::c_int; 4],
        address: usize,
        lost_bits: i16,
    }
    let fields: *const Fields = std::ptr::from_ref(info).cast();
    // SAFETY: a `siginfo_t` has 128 bytes, and is aligned to 8.
    u32::try_from(unsafe { (*fields).lost_bits }).unwrap_or(0)
}

/// Puts zeros of this process's own in place of what is mapped there.
fn replace_mapping(start: usize, bytes: usize, protection: libc::c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = std::ptr::without_provenance_mut(start);
    // SAFETY: the range is of a mapping that its owner keeps while the entry is claimed. No
    // reference into it exists (`fabric/mapped.rs`).
    let mapped = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
    mapped == at
}

/// The places of this process in the registry of its host become those of a dead one (FAULT-F4).
fn mark_dead(tier: &TierEntry) {
    let second = tier.second_start.load(Ordering::Relaxed);
    let (at, mine) =
        (tier.places_at.load(Ordering::Relaxed), tier.identity.load(Ordering::Relaxed));
    for place in 0..PLACES {
        let word = std::ptr::without_provenance_mut(second + at + place * PLACE_WORDS * 8);
        // SAFETY: the registry lies inside the second mapping, which its owner keeps while the
        // entry is claimed; all processes access its words as atomics.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let found = word.load(Ordering::SeqCst);
        if found & IDENTITY == mine {
            let dead = found & !IDENTITY | NOBODY_ALIVE;
            // It fails when others struck the process off.
            let order = Ordering::SeqCst;
            let _ = word.compare_exchange(found, dead, order, order);
        }
    }
}

/// Does what the process would do without this handler.
///
/// # Safety
/// The arguments are those of the system's call of a handler.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    type Plain = extern "C" fn(libc::c_int);
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: set before this handler was installed, and never freed.
    let previous = unsafe { &*previous };
    // SAFETY: the system passes it whole.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        // The system does not let an access that faults be ignored: it would be repeated for ever.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: may be called in a handler. An access that faults is repeated after the
            // return, and ends the process with its address.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if was_sent {
                // SAFETY: may be called in a handler.
                unsafe { libc::raise(signal) };
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the system would have called it so.
            let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above.
            let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
            handler(signal);
        }
    }
}
