//! When transfers end: all links of all hosts (RACK-R5, RACK-S5).

use crate::link::{Device, free_at};
use crate::links::Links;
use crate::system::System;

/// Until when each link of each host is in use.
#[derive(Debug)]
pub(super) struct Network<'s> {
    links: &'s Links,
    block_bytes: u64,
    device_ns: Vec<u64>,
    memory_ns: u64,
    /// What a host sends, and what it receives.
    sends_ns: Vec<u64>,
    receives_ns: Vec<u64>,
    local_ns: Vec<u64>,
}

impl<'s> Network<'s> {
    pub(super) fn new(links: &'s Links, nodes: u16, block_bytes: u64) -> Self {
        let idle = || vec![0; nodes.into()];
        let [device_ns, sends_ns, receives_ns, local_ns] = [idle(), idle(), idle(), idle()];
        Self { links, block_bytes, device_ns, memory_ns: 0, sends_ns, receives_ns, local_ns }
    }

    /// A node reads or writes so many blocks of the shared memory.
    pub(super) fn shared(&mut self, now_ns: u64, node: u16, blocks: u64) -> u64 {
        let bytes = blocks * self.block_bytes;
        let memory = self.links.memory.as_ref();
        let passed_ns = memory.map_or(now_ns, |it| pass(it, &mut self.memory_ns, now_ns, bytes));
        pass(&self.links.device, &mut self.device_ns[usize::from(node)], now_ns, bytes)
            .max(passed_ns)
    }

    /// Blocks move between the memory of a node and a GPU of it.
    pub(super) fn local(&mut self, now_ns: u64, node: u16, blocks: u64) -> u64 {
        let bytes = blocks * self.block_bytes;
        pass(&self.links.local, &mut self.local_ns[usize::from(node)], now_ns, bytes)
    }

    /// Blocks move from one node to another, or stay on one.
    pub(super) fn send(&mut self, now_ns: u64, from: u16, to: u16, blocks: u64) -> u64 {
        if from == to {
            return self.local(now_ns, to, blocks);
        }
        let sends_ns = &mut self.sends_ns[usize::from(from)];
        let receives_ns = &mut self.receives_ns[usize::from(to)];
        let mut busy_ns = (*sends_ns).max(*receives_ns);
        let end_ns = pass(&self.links.network, &mut busy_ns, now_ns, blocks * self.block_bytes);
        (*sends_ns, *receives_ns) = (busy_ns, busy_ns);
        end_ns
    }

    /// A node reads these blocks of a store, or writes them (RACK-S4).
    pub(super) fn store(&mut self, now_ns: u64, node: u16, blocks: &[u32], writes: bool) -> u64 {
        let nodes = self.local_ns.len();
        let mut of_host = vec![0; nodes];
        for block in blocks {
            of_host[*block as usize % nodes] += 1;
        }
        let mut end_ns = now_ns;
        for (host, count) in (0..).zip(of_host).filter(|(_, count)| *count > 0) {
            let (from, to) = if writes { (node, host) } else { (host, node) };
            end_ns = end_ns.max(self.send(now_ns, from, to, count));
        }
        end_ns
    }

    /// How long it takes to ask a system where blocks are, besides what its software takes.
    pub(super) fn ask_ns(&self, system: System) -> u64 {
        if system == System::Store { self.links.rpc_ns } else { 0 }
    }
}

fn pass(device: &Device, busy_until_ns: &mut u64, now_ns: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return now_ns;
    }
    *busy_until_ns = free_at(device, *busy_until_ns, now_ns, bytes);
    *busy_until_ns + device.latency_ns()
}
