//! Which pieces are registered, which of them calls use, and which go when there is no room.
//!
//! Bookkeeping alone: [`Registrations`](super::Registrations) has the driver do what this says, and
//! tells the outcome.

use std::collections::BTreeMap;

use super::pieces::Pieces;

/// A piece that the driver refused is not asked for again in so many calls at most.
const SKIPS_MAX: u32 = 1024;

/// How often something is left out that was of no use so many times.
fn skips_after(times: u32) -> u32 {
    1_u32.checked_shl(times).unwrap_or(SKIPS_MAX).min(SKIPS_MAX)
}

/// Figures of the registrations of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::dma::cuda) struct RegistrationFigures {
    /// Bytes that are registered now.
    pub(in crate::dma::cuda) registered_bytes: u64,
    pub(in crate::dma::cuda) registrations: u64,
    pub(in crate::dma::cuda) unregistrations: u64,
    pub(in crate::dma::cuda) refused: u64,
    /// Registrations above the limit.
    pub(in crate::dma::cuda) over_limit: u64,
    /// What that took, in nanoseconds, with the first touch of pages.
    pub(in crate::dma::cuda) driver_ns: u64,
}

/// What becomes of a wish for a piece.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// It is registered, and has one pin more.
    Pinned,
    /// A thread registers or unregisters it: ask again when that is over.
    Changing,
    /// The caller registers it, when these are unregistered, and tells the outcome of all.
    Register { first_unregister: Vec<u64> },
    /// The driver refused it lately, for this reason.
    Refused(String),
}

#[derive(PartialEq, Eq, Debug)]
enum Piece {
    /// The driver registers it.
    Registering {
        is_above_limit: bool,
    },
    /// The driver unregisters it.
    Unregistering,
    Registered(Registered),
}

#[derive(PartialEq, Eq, Debug)]
struct Registered {
    pins: u64,
    /// Its key in `idle`.
    idle_since: Option<u64>,
    /// The driver could not unregister it (CUDA-R5).
    stays: bool,
}

/// As much room was made for a piece as it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HadRoom {
    /// Registrations before it was made: a piece that was registered since may have taken the room.
    pub(super) registered_before: u64,
}

#[derive(Debug)]
struct Refusal {
    times: u32,
    /// Calls that are answered without asking the driver.
    skips: u32,
    reason: String,
}

/// Room that was made for refused pieces, and was of no use, since the driver registered one.
#[derive(Default, Debug)]
struct Futility {
    times: u32,
    /// Refused pieces that get no room.
    skips: u32,
}

/// The pieces that are registered.
#[derive(Debug)]
pub(super) struct Table {
    pieces: Pieces,
    limit_bytes: u64,
    known: BTreeMap<u64, Piece>,
    /// Registered pieces without pins, the least recently used first.
    idle: BTreeMap<u64, u64>,
    refused: BTreeMap<u64, Refusal>,
    futility: Futility,
    /// Counts ends of use.
    now: u64,
    pub(super) figures: RegistrationFigures,
}

impl Table {
    pub(super) fn new(pieces: Pieces, limit_bytes: u64) -> Self {
        Self {
            pieces,
            limit_bytes,
            known: BTreeMap::new(),
            idle: BTreeMap::new(),
            refused: BTreeMap::new(),
            futility: Futility::default(),
            now: 0,
            figures: RegistrationFigures::default(),
        }
    }

    /// Pins a piece that is registered. Whether it is.
    pub(super) fn pin_registered(&mut self, piece: u64) -> bool {
        let Some(Piece::Registered(registered)) = self.known.get_mut(&piece) else { return false };
        registered.pins += 1;
        if let Some(since) = registered.idle_since.take() {
            self.idle.remove(&since);
        }
        true
    }

    /// Pins a piece, or says what has to be done first.
    pub(super) fn pin(&mut self, piece: u64) -> Wish {
        if self.pin_registered(piece) {
            return Wish::Pinned;
        }
        if self.known.contains_key(&piece) {
            return Wish::Changing;
        }
        if let Some(refusal) = self.refused.get_mut(&piece).filter(|refusal| refusal.skips > 0) {
            refusal.skips -= 1;
            return Wish::Refused(refusal.reason.clone());
        }
        let bytes = self.pieces.extent(piece).bytes();
        let is_above_limit =
            |table: &Self| table.figures.registered_bytes + bytes > table.limit_bytes;
        let mut first_unregister = Vec::new();
        // CUDA-R3: nobody waits for the pins of others.
        while is_above_limit(self)
            && let Some(idle) = self.take_idle()
        {
            first_unregister.push(idle);
        }
        let is_above_limit = is_above_limit(self);
        self.known.insert(piece, Piece::Registering { is_above_limit });
        self.figures.registered_bytes += bytes;
        Wish::Register { first_unregister }
    }

    /// The least recently used piece without pins (CUDA-R2). The caller unregisters it, and tells the
    /// outcome.
    pub(super) fn take_idle(&mut self) -> Option<u64> {
        let (_, piece) = self.idle.pop_first()?;
        self.known.insert(piece, Piece::Unregistering);
        self.figures.registered_bytes -= self.pieces.extent(piece).bytes();
        Some(piece)
    }

    /// The same, when more is registered than the limit allows.
    pub(super) fn take_excess(&mut self) -> Option<u64> {
        if self.figures.registered_bytes > self.limit_bytes { self.take_idle() } else { None }
    }

    /// Whether a piece that the driver refused gets the room of idle ones: ever more rarely where that
    /// was of no use.
    pub(super) fn gives_room(&mut self) -> bool {
        let gives_room = self.futility.skips == 0;
        self.futility.skips = self.futility.skips.saturating_sub(1);
        gives_room
    }

    /// The driver has registered it: the caller has a pin.
    pub(super) fn registered(&mut self, piece: u64) {
        self.figures.registrations += 1;
        self.futility = Futility::default();
        self.refused.remove(&piece);
        let registered = Registered { pins: 1, idle_since: None, stays: false };
        let before = self.known.insert(piece, Piece::Registered(registered));
        if before == Some(Piece::Registering { is_above_limit: true }) {
            self.figures.over_limit += 1;
        }
    }

    /// The driver has refused to register it, in the room of others too where there was any.
    pub(super) fn refused(&mut self, piece: u64, reason: &str, had_room: Option<HadRoom>) {
        self.figures.refused += 1;
        let registrations = self.figures.registrations;
        if had_room.is_some_and(|room| room.registered_before == registrations) {
            let times = self.futility.times.saturating_add(1);
            self.futility = Futility { times, skips: skips_after(times) };
        }
        self.figures.registered_bytes -= self.pieces.extent(piece).bytes();
        self.known.remove(&piece);
        let times = self.refused.get(&piece).map_or(1, |refusal| refusal.times.saturating_add(1));
        let skips = skips_after(times);
        self.refused.insert(piece, Refusal { times, skips, reason: reason.to_owned() });
    }

    /// The driver has unregistered it, or could not.
    pub(super) fn unregistered(&mut self, piece: u64, is_gone: bool) {
        if is_gone {
            self.figures.unregistrations += 1;
            self.known.remove(&piece);
            return;
        }
        // CUDA-R5: it counts as registered, and is never taken again.
        self.figures.registered_bytes += self.pieces.extent(piece).bytes();
        let stays = Registered { pins: 0, idle_since: None, stays: true };
        self.known.insert(piece, Piece::Registered(stays));
    }

    /// Takes back one pin.
    ///
    /// # Panics
    /// When it has none.
    pub(super) fn unpin(&mut self, piece: u64) {
        let Some(Piece::Registered(registered)) = self.known.get_mut(&piece) else {
            panic!("piece {piece} has a pin, and is not registered");
        };
        registered.pins = registered.pins.checked_sub(1).expect("a pin is taken back once");
        if registered.pins == 0 && !registered.stays {
            registered.idle_since = Some(self.now);
            self.idle.insert(self.now, piece);
            self.now += 1;
        }
    }

    /// All that are registered. None is pinned any more.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        self.idle.clear();
        std::mem::take(&mut self.known).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 2 << 20;

    fn table(pieces: u64, limit_pieces: u64) -> Table {
        Table::new(Pieces::new(pieces * PIECE, PIECE), limit_pieces * PIECE)
    }

    fn first(pieces: &[u64]) -> Wish {
        Wish::Register { first_unregister: pieces.to_vec() }
    }

    /// Registers a piece for which there is room, and ends its use.
    fn use_once(table: &mut Table, piece: u64) {
        if table.pin(piece) == first(&[]) {
            table.registered(piece);
        }
        table.unpin(piece);
    }

    #[test]
    fn the_least_recently_used_piece_goes_first() {
        let mut table = table(8, 3);
        for piece in [0, 1, 2, 0] {
            use_once(&mut table, piece);
        }
        assert_eq!(table.pin(5), first(&[1]));
        assert_eq!(table.pin(6), first(&[2]));
        assert_eq!(table.pin(7), first(&[0]));
        assert_eq!(table.figures.registered_bytes, 3 * PIECE);
    }

    #[test]
    fn a_pinned_piece_does_not_go() {
        let mut table = table(8, 2);
        assert_eq!(table.pin(0), first(&[]));
        table.registered(0);
        use_once(&mut table, 1);
        assert_eq!(table.pin(2), first(&[1]));
        table.unregistered(1, true);
        table.registered(2);
        assert_eq!(table.pin(3), first(&[]), "above the limit: both are pinned");
        table.registered(3);
        assert_eq!(table.figures.over_limit, 1);
        assert_eq!(table.take_excess(), None, "all are pinned");
        table.unpin(0);
        assert_eq!((table.take_excess(), table.take_excess()), (Some(0), None));
    }

    #[test]
    fn a_piece_stays_until_its_last_pin_is_taken_back() {
        let mut table = table(2, 1);
        assert_eq!(table.pin(0), first(&[]));
        table.registered(0);
        assert_eq!(table.pin(0), Wish::Pinned);
        table.unpin(0);
        assert_eq!(table.take_idle(), None);
        table.unpin(0);
        assert_eq!(table.take_idle(), Some(0));
    }

    #[test]
    fn a_piece_that_changes_is_waited_for() {
        let mut table = table(4, 1);
        assert_eq!(table.pin(0), first(&[]));
        assert_eq!(table.pin(0), Wish::Changing);
        table.registered(0);
        table.unpin(0);
        assert_eq!(table.pin(1), first(&[0]));
        assert_eq!((table.pin(0), table.pin(1)), (Wish::Changing, Wish::Changing));
        table.unregistered(0, true);
        assert_eq!(table.pin(0), first(&[]));
    }

    #[test]
    fn a_refused_piece_is_asked_for_ever_more_rarely() {
        let mut table = table(4, 4);
        for skips in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert_eq!(table.pin(3), first(&[]));
            table.refused(3, "no", None);
            for _ in 0..skips {
                assert_eq!(table.pin(3), Wish::Refused("no".into()));
            }
        }
        assert_eq!(table.pin(3), first(&[]));
        table.registered(3);
        let figures = table.figures;
        assert_eq!((figures.refused, figures.registrations), (11, 1));
        assert_eq!(figures.registered_bytes, PIECE);
        assert_eq!(table.pin(3), Wish::Pinned);
    }

    #[test]
    fn what_was_refused_is_not_above_the_limit() {
        let mut table = table(4, 1);
        assert_eq!(table.pin(0), first(&[]));
        table.registered(0);
        assert_eq!(table.pin(1), first(&[]));
        table.refused(1, "no", None);
        let figures = table.figures;
        assert_eq!((figures.registrations, figures.over_limit, figures.refused), (1, 0, 1));
    }

    #[test]
    fn no_more_pieces_go_for_refused_ones_than_is_of_use() {
        let mut table = table(8, 8);
        for piece in 0..4 {
            use_once(&mut table, piece);
        }
        let had_room = Some(HadRoom { registered_before: 4 });
        for (piece, skips) in [(4, 2), (5, 4), (6, 8)] {
            assert_eq!(table.pin(piece), first(&[]));
            assert!(table.gives_room());
            table.refused(piece, "no", had_room);
            for _ in 0..skips {
                assert!(!table.gives_room(), "after {piece}");
            }
        }
        assert_eq!(table.pin(7), first(&[]));
        table.refused(7, "no", had_room);
        assert!(!table.gives_room());
        assert_eq!(table.take_idle(), Some(0));
        table.unregistered(0, true);
        use_once(&mut table, 0);
        assert!(table.gives_room(), "the driver registers again");
    }

    #[test]
    fn what_cannot_be_unregistered_counts_and_is_not_taken_again() {
        let mut table = table(4, 2);
        use_once(&mut table, 0);
        assert_eq!(table.take_idle(), Some(0));
        table.unregistered(0, false);
        assert_eq!(table.figures.registered_bytes, PIECE);
        assert_eq!(table.pin(0), Wish::Pinned);
        table.unpin(0);
        assert_eq!(table.take_idle(), None);
        assert_eq!(table.take_all(), [0]);
    }
}
