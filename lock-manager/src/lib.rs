//! The arbiter of the shared tier of locks: one active process a rack.
