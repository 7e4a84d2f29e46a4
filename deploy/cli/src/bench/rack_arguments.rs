//! Which workers there are, and what computing takes.

use anyhow::{Context as _, Result};
use clap::Args;
use rackline_serving::{Profile, Rack};

#[derive(Args, Debug)]
pub(super) struct RackArguments {
    /// Nodes of the rack.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=32))]
    nodes: u16,

    /// Prefill workers. They and then the decode workers go to each node in turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    prefill: u16,

    /// Decode workers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    decode: u16,

    /// What computing takes: the name of a profile that is built in, or a file that ends with .toml.
    #[arg(long, value_name = "PROFILE", default_value = Profile::NAMES[0])]
    profile: String,
}

impl RackArguments {
    pub(super) fn rack(&self) -> Result<Rack> {
        Ok(Rack::new(self.nodes, self.prefill, self.decode)?)
    }

    /// The text of the profile.
    pub(super) fn profile_text(&self) -> Result<String> {
        let name = &self.profile;
        if !name.ends_with(".toml") {
            return Ok(Profile::text_of(name)?.to_owned());
        }
        std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))
    }
}
