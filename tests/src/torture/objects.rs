//! What a worker does with objects and named roots.
//!
//! Of its roots the ones with an odd number are destroyed by the next worker, the others by itself:
//! one of them says when a root is no longer certain. Objects without a name are its own, until it
//! gives one to the next worker, which frees it.

use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects as _;
use std::collections::BTreeSet;

use anyhow::Result;
use cxl_shm::chunk::AllocateError;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{LineRange, WordOffset};
use cxl_shm::verify::simulated::Random;
use cxl_shm_objects::{DestroyRootError, GetRootError, PutRootError, Root, RootKind};
use cxl_shm_objects::{FreeError, Object, ObjectError, PeerObject, ReturnError, SweepError};

use super::child::ChildOptions;
use super::event::{Event, tell};
use super::ground::{gift, gift_lock, gift_taken, is_scarce};
use super::named::{Gift, MadeFor, RootId};
use super::worker::{LOCK_TIMEOUT_MS, busy};

/// Most roots of a worker that it destroys itself, and most that wait for the next worker.
const OWN_MAX: usize = 5;
const FOREIGN_MAX: usize = 4;
/// Most objects without a name.
const HELD_MAX: usize = 8;

/// The objects of one worker.
pub(super) struct Objects<'m, B: Backend> {
    member: &'m Member<B>,
    clock: SystemClock,
    worker: u32,
    workers: u32,
    next: u64,
    /// Roots that nobody else destroys: they are there.
    named: BTreeSet<u64>,
    held: Vec<(Object, MadeFor)>,
    /// Hosts are declared dead, and their heaps pass to others. Then nothing is given: who frees it
    /// could not know whose it is (OBJECT-O5).
    adopts: bool,
}

impl<'m, B: Backend> Objects<'m, B> {
    /// The roots of this worker's earlier lives: those that were acknowledged are there, the others
    /// are whole or not there, and destroyed. What had no name is not its own any more.
    pub(super) fn take_over(options: &ChildOptions, member: &'m Member<B>) -> Result<Self> {
        let objects = Self {
            member,
            clock: SystemClock::start(),
            worker: options.index,
            workers: options.workers,
            next: options.next_root,
            named: options.roots.iter().copied().collect(),
            held: Vec::new(),
            adopts: options.declare,
        };
        if !objects.adopts {
            objects.outlast_gifts()?;
        }
        for number in &objects.named {
            objects.check_own(*number)?;
            objects.check_unfreeable(*number)?;
        }
        for number in &options.doubtful_roots {
            while !objects.destroy(objects.root(*number), false)? {
                member.check_member()?;
            }
        }
        Ok(objects)
    }

    /// OBJECT-O5: any process that still frees what an earlier life of this host gave away has done
    /// so before this life allocates anything.
    fn outlast_gifts(&self) -> Result<()> {
        loop {
            match self.member.lock_shared(gift_lock(), &self.clock, LOCK_TIMEOUT_MS) {
                Ok(guard) => {
                    drop(guard);
                    return tell(&Event::Locked);
                }
                Err(error) => busy(error)?,
            }
        }
    }

    fn root(&self, number: u64) -> RootId {
        RootId { worker: self.worker, number }
    }

    /// Something, drawn by `random`.
    pub(super) fn turn(&mut self, random: &mut Random) -> Result<()> {
        for (object, made_for) in &self.held {
            self.check_held(object, *made_for)?;
        }
        match random.below(12) {
            0..3 => self.name(),
            3 | 4 => self.destroy_oldest(OWN_MAX - 2),
            5 => self.destroy_of_other(),
            6 => match random.index(self.named.len()).and_then(|at| self.named.iter().nth(at)) {
                Some(number) => self.check_own(*number),
                None => Ok(()),
            },
            7 => self.check_any(random),
            8 => self.hold(),
            9 => match random.index(self.held.len()) {
                Some(index) => self.free(index),
                None => Ok(()),
            },
            10 if !self.adopts => {
                self.give()?;
                self.take_gift()
            }
            _ => self.tend(),
        }
    }

    /// Everything, in order.
    pub(super) fn round(&mut self) -> Result<()> {
        // One for each kind of root.
        for _ in 0..4 {
            self.name()?;
        }
        for number in self.named.clone() {
            self.check_own(number)?;
        }
        self.destroy_oldest(1)?;
        self.destroy_of_other()?;
        self.hold()?;
        if !self.held.is_empty() {
            self.free(0)?;
        }
        if !self.adopts {
            self.give()?;
            self.take_gift()?;
        }
        self.tend()
    }

    /// Frees what has no name. What cannot be freed the sweep of the next life finds.
    pub(super) fn end(&mut self) -> Result<()> {
        while !self.held.is_empty() {
            self.free(0)?;
        }
        Ok(())
    }

    /// Allocates an object and writes it; `None` when there is none available at the moment.
    fn make(&self, made_for: MadeFor, child: Option<&Object>) -> Result<Option<Object>> {
        match self.member.allocate(&self.clock, LOCK_TIMEOUT_MS, made_for.bytes()) {
            Ok(object) => {
                let child = child.map(Object::offset);
                if !made_for.write(self.member.fabric(), &object, child) {
                    let text = format!("{object:?} has no room for {made_for:?}");
                    tell(&Event::Fault(text))?;
                }
                tell(&Event::Allocated)?;
                Ok(Some(object))
            }
            Err(ObjectError::Lock(error)) => busy(error).map(|()| None),
            Err(ObjectError::HeapBusy { .. }) => tell(&Event::Busy).map(|()| None),
            Err(ObjectError::Exhausted { source: AllocateError::Lock(error), .. }) => {
                busy(error).map(|()| None)
            }
            Err(ObjectError::Exhausted { source: AllocateError::Exhausted { .. }, .. })
                if is_scarce(self.member.layout()) =>
            {
                tell(&Event::Busy).map(|()| None)
            }
            Err(error) => fault(&error).map(|()| None),
        }
    }

    /// Puts a root with a new object, and one that it refers to where the kind has one.
    fn name(&mut self) -> Result<()> {
        let root = self.root(self.next);
        if root.is_foreign() {
            let waits = |of: &RootId| of.worker == self.worker && of.is_foreign();
            if self.listed().filter(waits).count() >= FOREIGN_MAX {
                // The next worker is dead, or slow.
                self.next += 1;
                return Ok(());
            }
        } else if self.named.len() >= OWN_MAX {
            return self.destroy_oldest(OWN_MAX - 1);
        }
        self.next += 1;
        let child = match root.kind() {
            RootKind::Linked => match self.make(root.child(), None)? {
                Some(child) => Some(child),
                None => return Ok(()),
            },
            RootKind::Leaf => None,
        };
        let object = self.make(root.made_for(), child.as_ref())?;
        let held = child.map(|child| (child, root.child()));
        let Some(object) = object else {
            self.held.extend(held);
            return Ok(());
        };
        tell(&Event::Naming(root.number))?;
        let put = self.member.put_root(
            &self.clock,
            LOCK_TIMEOUT_MS,
            &root.name(),
            object.offset(),
            root.kind(),
        );
        if let Err(error) = put {
            tell(&Event::NotNamed(root.number))?;
            self.held.extend(held);
            let freed = self.member.free(&self.clock, LOCK_TIMEOUT_MS, object.offset());
            self.freed(freed, false)?;
            return match error {
                PutRootError::Lock(error) | PutRootError::Heap(SweepError::Lock(error)) => {
                    busy(error)
                }
                PutRootError::Heap(SweepError::HeapBusy { .. }) => tell(&Event::Busy),
                error => fault(&error),
            };
        }
        if !root.is_foreign() {
            self.named.insert(root.number);
        }
        tell(&Event::Named(root.number))
    }

    /// Destroys its oldest roots until there are `keep`.
    fn destroy_oldest(&mut self, keep: usize) -> Result<()> {
        while self.named.len() > keep {
            let Some(number) = self.named.first().copied() else { return Ok(()) };
            if !self.destroy(self.root(number), true)? {
                return Ok(());
            }
            self.named.remove(&number);
        }
        Ok(())
    }

    /// Destroys a root of the worker before this one.
    fn destroy_of_other(&self) -> Result<()> {
        let before = (self.worker + self.workers - 1) % self.workers;
        let ours = |root: &RootId| root.worker == before && root.is_foreign();
        match self.listed().find(ours) {
            Some(root) => self.destroy(root, false).map(drop),
            None => Ok(()),
        }
    }

    fn listed(&self) -> impl Iterator<Item = RootId> {
        let roots = self.member.roots().into_iter();
        roots.filter_map(|root| RootId::from_name(&root.name))
    }

    /// Destroys a root that nobody else destroys; whether it is gone. It is not there only when a
    /// former life of this worker was at it, or it is not `certain` for another reason.
    fn destroy(&self, root: RootId, certain: bool) -> Result<bool> {
        let name = root.name();
        let found = match self.look(&name)? {
            Found::Root(found) => found,
            Found::Nothing if certain => {
                return tell(&Event::Fault(format!("root {name} is gone"))).map(|()| true);
            }
            Found::Nothing => {
                return tell(&Event::Destroyed(root.worker, root.number)).map(|()| true);
            }
            Found::Busy => return Ok(false),
        };
        let Some(child) = self.read_whole(root, &found)? else { return Ok(true) };
        tell(&Event::Destroying(root.worker, root.number))?;
        match self.member.destroy_root(&self.clock, LOCK_TIMEOUT_MS, &name) {
            Ok(()) => {}
            Err(DestroyRootError::NotFound { .. }) if !certain => {}
            // It has begun, and may be done: the next life finds out.
            Err(DestroyRootError::Lock(error)) => return busy(error).map(|()| false),
            Err(DestroyRootError::Heap(SweepError::HeapBusy { .. })) => {
                return tell(&Event::Busy).map(|()| false);
            }
            Err(error) => fault(&error)?,
        }
        tell(&Event::Destroyed(root.worker, root.number))?;
        let Some(child) = child else { return Ok(true) };
        match self.member.free_object(&self.clock, LOCK_TIMEOUT_MS, &child) {
            // The life that it was in is over: no root reached it when its chunk was swept.
            Err(FreeError::OtherLife { .. }) if self.adopts || !certain => {}
            freed => self.freed(freed, false)?,
        }
        Ok(true)
    }

    /// A free of what a root names is refused. In chunks of an earlier life it builds them first:
    /// whatever their roots reach is allocated from then on.
    fn check_unfreeable(&self, number: u64) -> Result<()> {
        let Found::Root(found) = self.look(&self.root(number).name())? else { return Ok(()) };
        loop {
            match self.member.free(&self.clock, LOCK_TIMEOUT_MS, found.object.offset()) {
                // Another node's by now: that one refuses.
                Ok(()) if self.adopts => return Ok(()),
                Err(FreeError::Named { .. }) => return Ok(()),
                Err(FreeError::Lock(error)) => busy(error)?,
                Err(FreeError::HeapBusy { .. }) => tell(&Event::Busy)?,
                Err(FreeError::Backlog { .. } | FreeError::OwnerUnknown { .. }) if self.adopts => {
                    return Ok(());
                }
                Ok(()) => {
                    let text = format!("the object of root {} was freed", found.name);
                    return tell(&Event::Fault(text));
                }
                Err(error) => return fault(&error),
            }
        }
    }

    /// A root that nobody destroys meanwhile is whole, and so is what it refers to, which is
    /// returned; `None` after a fault.
    fn read_whole(&self, root: RootId, found: &Root) -> Result<Option<Option<PeerObject>>> {
        let read = root.read_whole(self.member, found);
        tell(&match read {
            Some(_) => Event::Verified,
            None => {
                let name = &found.name;
                Event::Fault(format!("root {name} has other bytes, or is of another kind"))
            }
        })?;
        Ok(read)
    }

    /// A root of its own is there and whole.
    fn check_own(&self, number: u64) -> Result<()> {
        let root = self.root(number);
        match self.look(&root.name())? {
            Found::Root(found) => self.read_whole(root, &found).map(drop),
            Found::Nothing => {
                let text = format!("root {}, which was acknowledged, is gone", root.name());
                tell(&Event::Fault(text))
            }
            Found::Busy => Ok(()),
        }
    }

    /// Reads any root, which may be destroyed meanwhile: what is still there afterwards was whole.
    fn check_any(&self, random: &mut Random) -> Result<()> {
        let roots = self.member.roots();
        let Some(found) = random.index(roots.len()).and_then(|index| roots.get(index)) else {
            return Ok(());
        };
        let Some(root) = RootId::from_name(&found.name) else {
            return tell(&Event::Fault(format!("nobody put root {}", found.name)));
        };
        let read = root.made_for().read(self.member.fabric(), &found.object);
        match self.look(&found.name)? {
            Found::Root(again) if again == *found && read.is_none() => {
                tell(&Event::Fault(format!("root {} has other bytes", found.name)))
            }
            Found::Root(again) if again == *found => tell(&Event::Verified),
            _ => Ok(()),
        }
    }

    fn look(&self, name: &str) -> Result<Found> {
        match self.member.root(name) {
            Ok(Some(root)) => Ok(Found::Root(root)),
            Ok(None) => Ok(Found::Nothing),
            // Its writer is dead, and not recovered from yet.
            Err(GetRootError::BeingWritten { .. }) => {
                tell(&Event::Busy)?;
                self.member.check_member()?;
                self.clock.sleep_ms(1);
                Ok(Found::Busy)
            }
            // Whose object is just being freed.
            Err(GetRootError::Damaged { .. }) => tell(&Event::Busy).map(|()| Found::Busy),
            Err(error) => fault(&error).map(|()| Found::Busy),
        }
    }

    /// Allocates an object that has no name.
    fn hold(&mut self) -> Result<()> {
        if self.held.len() >= HELD_MAX {
            return self.free(0);
        }
        self.next += 1;
        // No root has this number: what is held is told apart from what is named.
        let made_for = self.root(self.next).child();
        self.next += 1;
        let object = self.make(made_for, None)?;
        self.held.extend(object.map(|object| (object, made_for)));
        Ok(())
    }

    /// Nobody else has written into an object without a name.
    fn check_held(&self, object: &Object, made_for: MadeFor) -> Result<()> {
        if made_for.read(self.member.fabric(), &object.peer()).is_some() {
            return Ok(());
        }
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let offset = object.offset();
        let chunk = layout.chunk_of(object.extent());
        let entry = chunk.map(|chunk| (chunk, layout.chunk_entry(chunk).fresh(fabric)));
        let words = object.area().range().start();
        let words = (0..8).filter_map(|index| words.word(index)).map(|word| fabric.load(word));
        tell(&Event::Fault(format!(
            "object {offset}, {made_for:?}, is somebody else's too: {:x?} in {entry:?}",
            words.collect::<Vec<_>>(),
        )))
    }

    /// Frees an object without a name.
    fn free(&mut self, index: usize) -> Result<()> {
        let (object, made_for) = self.held.swap_remove(index);
        self.check_held(&object, made_for)?;
        self.freed(self.member.free(&self.clock, LOCK_TIMEOUT_MS, object.offset()), false)
    }

    fn freed(&self, outcome: Result<(), FreeError>, foreign: bool) -> Result<()> {
        match outcome {
            Ok(()) => tell(&Event::Freed { foreign }),
            Err(FreeError::Lock(error)) => busy(error),
            // It is lost to the sweep of its owner's next life.
            Err(
                FreeError::Backlog { .. }
                | FreeError::OwnerUnknown { .. }
                | FreeError::HeapBusy { .. },
            ) => tell(&Event::Busy),
            Err(error) => fault(&error),
        }
    }

    /// Gives the next worker an object to free, when it has taken the last one.
    fn give(&mut self) -> Result<()> {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let given = gift(layout, self.worker);
        let last = self.fresh(given);
        let taken = self.fresh(gift_taken(layout, (self.worker + 1) % self.workers));
        if last != 0 && taken != last {
            return Ok(());
        }
        let made_for = self.root(self.next).child();
        self.next += 1;
        let Some(object) = self.make(made_for, None)? else { return Ok(()) };
        let next = Gift::new(object.offset(), self.member.incarnation(), Gift::next(last));
        fabric.store(given, next.word());
        fabric.publish(LineRange::one(given.line()));
        Ok(())
    }

    /// Frees what the worker before this one gave.
    fn take_gift(&self) -> Result<()> {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let _guard = match self.member.lock_shared(gift_lock(), &self.clock, LOCK_TIMEOUT_MS) {
            Ok(guard) => guard,
            Err(error) => return busy(error),
        };
        let before = (self.worker + self.workers - 1) % self.workers;
        let word = self.fresh(gift(layout, before));
        let taken = gift_taken(layout, self.worker);
        let Some(gift) = Gift::from_word(word).filter(|_| self.fresh(taken) != word) else {
            return Ok(());
        };
        // Said first: a death after this loses the object to the sweep, one before it frees it
        // twice.
        fabric.store(taken, word);
        fabric.publish(LineRange::one(taken.line()));
        // OBJECT-O5. Were its life over by now, the next one would wait for our lock before it
        // allocates.
        let owner = layout.nodes().nth(before as usize % usize::from(layout.geometry().nodes));
        let line = owner.and_then(|owner| layout.node_line(owner).fresh(fabric).ok());
        if !line.is_some_and(|line| gift.is_of(line.incarnation())) {
            return Ok(());
        }
        self.freed(self.member.free(&self.clock, LOCK_TIMEOUT_MS, gift.offset), true)
    }

    fn fresh(&self, word: WordOffset) -> u64 {
        let fabric = self.member.fabric();
        fabric.refresh(LineRange::one(word.line()));
        fabric.load(word)
    }

    /// What the process that sends the heartbeat of a host does now and then.
    fn tend(&self) -> Result<()> {
        match self.member.answer_chunk_requests(&self.clock, LOCK_TIMEOUT_MS) {
            Ok(_) => tell(&Event::Tended),
            Err(ReturnError::Lock(error)) => busy(error),
            Err(ReturnError::HeapBusy { .. }) => tell(&Event::Busy),
            Err(error) => fault(&error),
        }
    }
}

enum Found {
    Root(Root),
    Nothing,
    /// It cannot be said at the moment.
    Busy,
}

/// What must never be.
fn fault(error: &dyn std::error::Error) -> Result<()> {
    tell(&Event::Fault(error.to_string()))
}
