//! Which processes of the host are gone, asked once each.

use std::cell::RefCell;
use std::collections::HashMap;

use cxl_shm::host::ProcessSlot;

/// `is_gone`, which asks the operating system, remembered for each process: who goes through many
/// records under the heap lock asks once for each process, and not for each record.
pub(crate) fn once_each(is_gone: impl Fn(ProcessSlot) -> bool) -> impl Fn(ProcessSlot) -> bool {
    let known = RefCell::new(HashMap::new());
    move |process| *known.borrow_mut().entry(process).or_insert_with(|| is_gone(process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_process_is_asked_for_once() {
        let asked = Cell::new(0);
        let is_gone = once_each(|process| {
            asked.set(asked.get() + 1);
            process.0 == 3
        });
        let gone: Vec<_> = [3, 4, 3, 4, 4].map(|slot| is_gone(ProcessSlot(slot))).to_vec();
        assert_eq!(gone, [true, false, true, false, false]);
        assert_eq!(asked.get(), 2);
    }
}
