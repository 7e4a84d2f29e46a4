//! When transfers end: all links of all hosts (RACK-R5, RACK-S5).

use crate::link::{Device, free_at};
use crate::links::Links;

/// Times in which a link is in use, by their begin. Those that have passed are forgotten.
#[derive(Clone, Debug, Default)]
struct Busy(Vec<(u64, u64)>);

impl Busy {
    /// The soonest time from `from_ns` on when the link is free for so long.
    fn free_from(&self, mut from_ns: u64, takes_ns: u64) -> u64 {
        for (begin_ns, end_ns) in &self.0 {
            if from_ns + takes_ns <= *begin_ns {
                break;
            }
            from_ns = from_ns.max(*end_ns);
        }
        from_ns
    }

    fn book(&mut self, now_ns: u64, begin_ns: u64, end_ns: u64) {
        self.0.retain(|(_, end_ns)| *end_ns > now_ns);
        let place = self.0.partition_point(|(other_ns, _)| *other_ns < begin_ns);
        self.0.insert(place, (begin_ns, end_ns));
    }
}

/// Until when each link of each host is in use.
#[derive(Debug)]
pub(super) struct Network<'s> {
    links: &'s Links,
    device_ns: Vec<u64>,
    memory_ns: u64,
    /// What a host sends, and what it receives.
    sends: Vec<Busy>,
    receives: Vec<Busy>,
    local_ns: Vec<u64>,
}

impl<'s> Network<'s> {
    pub(super) fn new(links: &'s Links, nodes: u16) -> Self {
        let idle = || vec![0; nodes.into()];
        let free = || vec![Busy::default(); nodes.into()];
        let (sends, receives) = (free(), free());
        Self { links, device_ns: idle(), memory_ns: 0, sends, receives, local_ns: idle() }
    }

    /// A node reads or writes bytes of the shared memory.
    pub(super) fn shared(&mut self, now_ns: u64, node: u16, bytes: u64) -> u64 {
        let memory = self.links.memory.as_ref();
        let passed_ns = memory.map_or(now_ns, |it| pass(it, &mut self.memory_ns, now_ns, bytes));
        pass(&self.links.device, &mut self.device_ns[usize::from(node)], now_ns, bytes)
            .max(passed_ns)
    }

    /// Bytes move between the memory of a node and a GPU of it.
    pub(super) fn local(&mut self, now_ns: u64, node: u16, bytes: u64) -> u64 {
        pass(&self.links.local, &mut self.local_ns[usize::from(node)], now_ns, bytes)
    }

    /// Bytes move from one node to another, or stay on one. A transfer begins as soon as both links are
    /// free for all of its time.
    pub(super) fn send(&mut self, now_ns: u64, from: u16, to: u16, bytes: u64) -> u64 {
        if from == to {
            return self.local(now_ns, to, bytes);
        }
        if bytes == 0 {
            return now_ns;
        }
        let takes_ns = self.links.network.transfer_ns(bytes);
        let sends = &mut self.sends[usize::from(from)];
        let receives = &mut self.receives[usize::from(to)];
        let mut begin_ns = now_ns;
        loop {
            let free_ns = receives.free_from(sends.free_from(begin_ns, takes_ns), takes_ns);
            if free_ns == begin_ns {
                break;
            }
            begin_ns = free_ns;
        }
        let end_ns = begin_ns + takes_ns;
        sends.book(now_ns, begin_ns, end_ns);
        receives.book(now_ns, begin_ns, end_ns);
        end_ns + self.links.network.latency_ns()
    }
}

pub(super) fn pass(device: &Device, busy_until_ns: &mut u64, now_ns: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return now_ns;
    }
    *busy_until_ns = free_at(device, *busy_until_ns, now_ns, bytes);
    *busy_until_ns + device.latency_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_link_is_free_until_the_transfer_that_waits_for_another_link_begins() {
        // 1 MB takes a millisecond.
        let network = Device::of_bytes(1e9, 0);
        let links = Links { network, ..Links::named("tract").unwrap() };
        let mut network = Network::new(&links, 4);
        assert_eq!(network.send(0, 0, 2, 1000 * MS), 1000 * MS);
        // Waits for what host 2 receives.
        assert_eq!(network.send(0, 1, 2, 10 * MS), 1010 * MS);
        assert_eq!(network.send(0, 1, 3, 7 * MS), 7 * MS);
        // Nothing takes no time, and no link.
        assert_eq!(network.send(8 * MS, 0, 1, 0), 8 * MS);
        assert_eq!(network.send(8 * MS, 3, 1, 5 * MS), 13 * MS);
        // Too long for the gap.
        assert_eq!(network.send(8 * MS, 1, 3, 993 * MS), 2003 * MS);
    }
}
