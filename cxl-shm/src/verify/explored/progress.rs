//! From every state the end can be reached: nothing is stranded, whatever happened before.

/// Who follows whom, states in the order in which they were visited.
#[derive(Debug, Default)]
pub(super) struct Edges {
    /// Where the successors of each visited state start.
    starts: Vec<u64>,
    to: Vec<u32>,
}

impl Edges {
    /// The successors of state `index`, which comes after the one before, follow.
    pub(super) fn begin(&mut self, index: u32) {
        debug_assert_eq!(self.starts.len(), index as usize, "states are visited in order");
        self.starts.push(self.to.len() as u64);
    }

    pub(super) fn push(&mut self, to: u32) {
        self.to.push(to);
    }
}

/// The first of `states` states from which none of `ended` can be reached.
pub(super) fn first_stranded(edges: &Edges, ended: &[u32], states: usize) -> Option<u32> {
    let Edges { starts, to } = edges;
    let position = |edge: u64| usize::try_from(edge).unwrap_or(usize::MAX);
    // The edges backwards: a counting sort by their ends.
    let mut backward_starts = vec![0_u64; states + 1];
    for end in to {
        backward_starts[*end as usize + 1] += 1;
    }
    for state in 0..states {
        backward_starts[state + 1] += backward_starts[state];
    }
    let mut places = backward_starts.clone();
    let mut backward = vec![0_u32; to.len()];
    for (from, start) in starts.iter().enumerate() {
        let end = starts.get(from + 1).map_or(to.len(), |end| position(*end));
        for edge in &to[position(*start)..end] {
            let place = &mut places[*edge as usize];
            backward[position(*place)] = u32::try_from(from).unwrap_or(u32::MAX);
            *place += 1;
        }
    }
    let mut reaches = vec![false; states];
    let mut open = ended.to_vec();
    while let Some(state) = open.pop() {
        let state = state as usize;
        if !std::mem::replace(&mut reaches[state], true) {
            let from = position(backward_starts[state])..position(backward_starts[state + 1]);
            open.extend(backward[from].iter().filter(|from| !reaches[**from as usize]));
        }
    }
    reaches.iter().position(|reaches| !reaches).and_then(|state| u32::try_from(state).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(successors: &[&[u32]]) -> Edges {
        let mut edges = Edges::default();
        for (index, successors) in (0..).zip(successors) {
            edges.begin(index);
            successors.iter().for_each(|to| edges.push(*to));
        }
        edges
    }

    #[test]
    fn a_state_without_a_way_to_the_end_is_stranded() {
        // 0 -> 1 -> 3 (end), 0 -> 2, 2 goes round.
        let edges = edges(&[&[1, 2], &[3], &[2], &[]]);
        assert_eq!(first_stranded(&edges, &[3], 4), Some(2));
        assert_eq!(first_stranded(&edges, &[2, 3], 4), None);
        assert_eq!(first_stranded(&edges, &[], 4), Some(0));
    }
}
