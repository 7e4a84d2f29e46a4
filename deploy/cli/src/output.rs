//! What the command prints: to standard output, and errors to standard error.
//!
//! Neither ends the command in the middle. Once standard output takes nothing more, the rest is not
//! printed, and [`finish`] says so at the end. A reader that closed its pipe (`| head -1`) has what
//! it wants: that is no error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// The first error of standard output.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints text to standard output.
macro_rules! show {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line to standard error.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::print_error(format_args!($($text)*)) };
}

pub(crate) use {complain, say, show};

/// "1 block", "2 blocks".
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn print(text: Arguments<'_>) {
    if FAILED.get().is_some() {
        return;
    }
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_fmt(text).and_then(|()| output.flush()) {
        let _ = FAILED.set(error);
    }
}

pub(crate) fn print_error(text: Arguments<'_>) {
    // Where that cannot be written, the exit status tells.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether everything was printed that the reader wanted.
///
/// # Errors
/// Standard output did not take it, on a full disk for instance.
pub(crate) fn finish() -> Result<()> {
    match FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            bail!("cannot write to standard output: {error}")
        }
        _ => Ok(()),
    }
}

/// A bar on standard error; hidden when that is no terminal.
pub(crate) fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
