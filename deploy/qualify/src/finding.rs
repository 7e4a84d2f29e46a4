//! What a litmus program found, in words.

/// What a count of a litmus program has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Zero, or the protocols do not hold on this platform.
    Never,
    /// Anything: the protocols do without.
    Anything,
    /// Anything, and one host, which is coherent within itself, does not show it.
    Hidden,
}

/// One variant of one litmus program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The program.
    pub litmus: &'static str,
    /// What was done.
    pub tried: &'static str,
    /// What was counted.
    pub counted: &'static str,
    /// How often it was tried.
    pub trials: u64,
    /// How often it was seen.
    pub seen: u64,
    /// What it has to be.
    pub expect: Expect,
}

impl Finding {
    /// Whether the platform breaks what the protocols need.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.expect == Expect::Never && self.seen > 0
    }

    /// What it means, in words. `hosts` is how many took part: what one host does not show proves
    /// nothing, since a host is coherent within itself.
    #[must_use]
    pub fn meaning(&self, hosts: u8) -> &'static str {
        match (self.expect, self.seen, hosts) {
            _ if self.trials == 0 => "nothing to judge: this processor or memory cannot show it",
            (Expect::Never, 0, 1) => "as needed; one host shows no more",
            (Expect::Never, 0, _) => "as needed",
            (Expect::Never, ..) => "VIOLATED: Rackline cannot work on this memory",
            (Expect::Hidden, 0, 1) => "not seen: one host is coherent within itself",
            (Expect::Anything | Expect::Hidden, 0, _) => "not seen, and not relied on",
            (Expect::Anything | Expect::Hidden, ..) => "happens, as the rules assume",
        }
    }
}
