//! Asking the owner of a drive to restore blocks.

use std::collections::BTreeSet;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{PublishBatch, refresh_all};
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::DriveError;
use crate::broken::{Rule, is_broken};
use crate::format::{
    DriveAreas, NUMBER_MAX, RequestLine, RestoreOutcome, RestoreRequest, answered_number,
    answered_outcome,
};
use crate::process::Cache;

/// Names a request of this node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RestoreTicket {
    node: NodeId,
    number: u64,
}

impl RestoreTicket {
    /// The node that is asked.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }
}

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// The requests that were made: the first ones that were given.
    pub tickets: Vec<RestoreTicket>,
    /// Requests that were not made because too many others are unanswered: a refusal at once.
    pub full: usize,
}

/// What is known of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RestoreState {
    /// No answer yet. The asking process waits no longer than it said in the request.
    Pending,
    /// The owner answered.
    Answered(RestoreOutcome),
    /// The owner's answer was read too late: later requests have its place. The block may be in the
    /// pool.
    Overtaken,
}

impl<B: Backend> Cache<'_, B> {
    /// Asks the agent of `node` to restore blocks into the pool. Waits for nobody but processes of
    /// this host. Prefetches ([`RestoreRequest::ahead`]) leave half of the ring to other requests.
    ///
    /// # Errors
    /// [`DriveError`]; nothing is asked for then.
    pub fn ask_restore(
        &self,
        clock: &impl Clock,
        node: NodeId,
        requests: &[RestoreRequest],
    ) -> Result<Asked, DriveError> {
        self.check_member()?;
        let drives = self.drives()?;
        let asked = self.locked(clock, |heap| {
            let fabric = heap.fabric();
            let own = self.own_drives(drives);
            let count = own.requests(node).own(fabric);
            let window = window_of(drives, requests);
            let room = self.room_for(drives, node, count, requests.len(), window);
            let asked = &requests[..room];
            let last = count + asked.len() as u64;
            // Also where the ring is full: a process that died may have stored a count that only this
            // host's caches have, so that nobody answers.
            let say_count = || own.requests(node).publish(fabric, last);
            let counts_first = is_broken(Rule::RequestBeforeCount);
            if counts_first {
                say_count();
            }
            let mut batch = PublishBatch::new(fabric);
            for (request, number) in asked.iter().zip(count + 1..) {
                batch.line(own.request(node, number), &RequestLine::new(number, request));
            }
            batch.publish();
            // TIER-Q1.
            if !counts_first {
                say_count();
            }
            let tickets = (count + 1..=last).map(|number| RestoreTicket { node, number });
            tickets.collect::<Vec<_>>()
        });
        let full = requests.len() - asked.len();
        Ok(Asked { tickets: asked, full })
    }

    /// How many of `wanted` requests behind number `count` have lines that may be written (TIER-Q1),
    /// and have an answered request `window` numbers before them.
    fn room_for(
        &self,
        drives: DriveAreas,
        node: NodeId,
        count: u64,
        wanted: usize,
        window: u64,
    ) -> usize {
        let (fabric, me) = (self.member().fabric(), self.member().node());
        let ring = drives.plan.ring();
        let last = count.saturating_add(wanted as u64).min(count.saturating_add(window));
        let numbers = count.saturating_add(1)..=last.min(NUMBER_MAX);
        let said = drives.of(node);
        // Answers are later than what this host knows of them, never earlier.
        let is_answered = |before: Option<u64>| match before {
            None | Some(0) => true,
            Some(_) if is_broken(Rule::RequestStaysOpen) => true,
            Some(before) => answered_number(said.answer(me, before).cached(fabric)) >= before,
        };
        let earlier = |number: &u64| [number.checked_sub(ring), number.checked_sub(window)];
        let is_free = |number: &u64| earlier(number).into_iter().all(is_answered);
        let room = |numbers: &std::ops::RangeInclusive<u64>| {
            numbers.clone().take_while(|number| is_free(number)).count()
        };
        let known = room(&numbers);
        if known == numbers.clone().count() {
            return known;
        }
        let looked_at = numbers.clone().flat_map(|number| earlier(&number)).flatten();
        let lines: BTreeSet<_> =
            looked_at.map(|before| said.answer(me, before).range().start()).collect();
        refresh_all(fabric, lines.into_iter().map(cxl_shm::units::LineRange::one));
        room(&numbers)
    }

    /// What is known of requests now: one refresh for all.
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn restore_states(
        &self,
        tickets: &[RestoreTicket],
    ) -> Result<Vec<RestoreState>, DriveError> {
        self.check_member()?;
        let (drives, me) = (self.drives()?, self.member().node());
        let fabric = self.member().fabric();
        let answer = |ticket: &RestoreTicket| drives.of(ticket.node).answer(me, ticket.number);
        let lines: BTreeSet<_> =
            tickets.iter().map(|ticket| answer(ticket).range().start()).collect();
        refresh_all(fabric, lines.into_iter().map(cxl_shm::units::LineRange::one));
        let state = |ticket: &RestoreTicket| {
            let word = answer(ticket).cached(fabric);
            match answered_number(word) {
                number if number < ticket.number => RestoreState::Pending,
                number if number > ticket.number => RestoreState::Overtaken,
                // An outcome that this version does not know: no block.
                _ => RestoreState::Answered(
                    answered_outcome(word).unwrap_or(RestoreOutcome::Stopped),
                ),
            }
        };
        Ok(tickets.iter().map(state).collect())
    }

    /// Takes requests back. An owner that has not begun to read a block then leaves it, and answers
    /// [`RestoreOutcome::Cancelled`].
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn cancel_restores(
        &self,
        clock: &impl Clock,
        tickets: &[RestoreTicket],
    ) -> Result<(), DriveError> {
        self.check_member()?;
        let drives = self.drives()?;
        self.locked(clock, |heap| {
            let fabric = heap.fabric();
            let own = self.own_drives(drives);
            let mut batch = PublishBatch::new(fabric);
            for ticket in tickets {
                let line = own.request(ticket.node, ticket.number);
                let open = line.own(fabric).ok().and_then(|it| it.cancelled(ticket.number));
                if let Some(cancelled) = open {
                    batch.line(line, &cancelled);
                }
            }
            batch.publish();
        });
        Ok(())
    }
}

/// Within how many numbers the requests may be unanswered: of the whole ring, or of half of it where
/// all are prefetches.
fn window_of(drives: DriveAreas, requests: &[RestoreRequest]) -> u64 {
    let ring = drives.plan.ring();
    if requests.iter().all(|request| request.ahead) { (ring / 2).max(1) } else { ring }
}
