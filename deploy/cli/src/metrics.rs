//! `--metrics ADDR:PORT` of the agent and of the lock manager.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use clap::Args;
use rackline_metrics::{MetricsServer, Source};

use crate::page::{RackPage, Whose};

/// Where figures are served.
#[derive(Args, Debug, Default)]
pub(crate) struct MetricsOptions {
    /// Serve a page of the rack at http://ADDR:PORT/, figures for Prometheus at /metrics, and at
    /// /healthz whether the program is at work. ADDR is one of this host's loopback addresses:
    /// 127.0.0.1 or [::1].
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// With --metrics: ADDR may be any address of this host. Everybody who can reach it reads the
    /// figures.
    #[arg(long, requires = "metrics")]
    metrics_beyond_loopback: bool,
}

impl MetricsOptions {
    /// Whether figures may be served where the options say.
    ///
    /// # Errors
    /// Others than this host could read them, and nobody said that they may.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(address) = self.metrics
            && !address.ip().is_loopback()
            && !self.metrics_beyond_loopback
        {
            bail!(
                "--metrics {address} can be reached from other hosts, and has no password; give \
                 127.0.0.1:{}, or add --metrics-beyond-loopback",
                address.port()
            );
        }
        Ok(())
    }

    /// Serves what `source` says, and the page of the rack, as long as the server lives. `None` where
    /// nobody asked for it.
    ///
    /// # Errors
    /// As [`check`](Self::check), or the address cannot be had.
    pub(crate) fn serve(&self, source: impl Source, whose: Whose) -> Result<Option<MetricsServer>> {
        self.check()?;
        let Some(address) = self.metrics else { return Ok(None) };
        let page = RackPage::start(source, whose)?;
        Ok(Some(MetricsServer::start(address, page)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_beyond_this_host_needs_a_flag() {
        let options = |address: &str, metrics_beyond_loopback| MetricsOptions {
            metrics: Some(address.parse().unwrap()),
            metrics_beyond_loopback,
        };
        for address in ["127.0.0.1:9100", "127.8.8.8:1", "[::1]:9100"] {
            options(address, false).check().unwrap();
        }
        for address in ["0.0.0.0:9100", "[::]:9100", "10.0.0.7:9100"] {
            let error = options(address, false).check().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:9100"), "{error}");
            assert!(error.contains("--metrics-beyond-loopback"), "{error}");
            options(address, true).check().unwrap();
        }
        MetricsOptions::default().check().unwrap();
    }
}
