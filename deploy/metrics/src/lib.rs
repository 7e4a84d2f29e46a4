//! Figures for the person on call: families of samples in the text format of Prometheus, and a small
//! server that has them at `/metrics`, and at `/healthz` whether the program is at work. A source may have
//! documents at other paths.
//!
//! ```text
//! server   answers requests on one thread
//! family   figures, and their text
//! ```

mod family;
mod server;

pub use family::{Family, Kind, Sample, text};
pub use server::{Document, Health, MetricsServer, ServeError, Source};
