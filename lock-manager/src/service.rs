//! A program as a service of systemd: it says when it is ready, what it does, and that it is at work.
//! Without systemd nothing is said.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;

/// Messages that wait at most. Further ones are dropped: the watchdog is fed by the next.
const WAITING_MAX: usize = 64;

#[derive(Debug)]
enum Message {
    Ready(String),
    Status(String),
    Alive,
    Reloading,
    Stopping,
}

/// What tells systemd about this process. The thread that does the work calls it. Another thread
/// writes, so that a service manager that does not read stops no work.
#[derive(Debug)]
pub struct Service {
    /// `None` where no service manager listens.
    messages: Option<SyncSender<Message>>,
    /// How often the watchdog is fed, in milliseconds, where there is one.
    feed_ms: Option<u64>,
    next_ms: u64,
    is_ready: bool,
    status: String,
}

impl Service {
    /// What tells the service manager that started this process, if one did (`NOTIFY_SOCKET`,
    /// `WATCHDOG_USEC`).
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start() -> io::Result<Self> {
        let listens = std::env::var_os("NOTIFY_SOCKET").is_some();
        let messages = if listens { Some(start_thread()?) } else { None };
        let feed_ms = sd_notify::watchdog_enabled().map(feed_ms);
        Ok(Self { messages, feed_ms, next_ms: 0, is_ready: false, status: String::new() })
    }

    /// Whether the service manager waits to be told that the process is ready.
    #[must_use]
    pub const fn awaits_word(&self) -> bool {
        !self.is_ready
    }

    /// The process is at work, and does what `status` says. The first call says that it is ready.
    pub fn is_at_work(&mut self, status: &str) {
        if self.is_ready && self.status == status {
            return;
        }
        status.clone_into(&mut self.status);
        let status = status.to_owned();
        let message = if self.is_ready { Message::Status(status) } else { Message::Ready(status) };
        self.is_ready = true;
        self.send(message);
    }

    /// Feeds the watchdog. To be called in each turn of the work.
    pub fn turn(&mut self, now_ms: u64) {
        if let Some(feed_ms) = self.feed_ms
            && now_ms >= self.next_ms
        {
            self.next_ms = now_ms + feed_ms;
            self.send(Message::Alive);
        }
    }

    /// The settings are read again. [`is_at_work`](Self::is_at_work) ends that.
    pub fn reloads(&mut self) {
        self.is_ready = false;
        self.send(Message::Reloading);
    }

    /// The process stops in order.
    pub fn stops(&mut self) {
        self.send(Message::Stopping);
    }

    fn send(&self, message: Message) {
        if let Some(messages) = &self.messages {
            let _ = messages.try_send(message);
        }
    }
}

/// Three times within the time that the watchdog waits: one feed may be late.
fn feed_ms(watchdog: Duration) -> u64 {
    u64::try_from(watchdog.as_millis() / 3).unwrap_or(u64::MAX).max(1)
}

fn start_thread() -> io::Result<SyncSender<Message>> {
    let (send, received) = sync_channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("rackline-notify".to_owned());
    thread.spawn(move || tell(&received))?;
    Ok(send)
}

fn tell(messages: &Receiver<Message>) {
    let mut is_told = false;
    for message in messages {
        let outcome = match message {
            Message::Ready(status) => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&status)])
            }
            Message::Status(status) => sd_notify::notify(&[NotifyState::Status(&status)]),
            Message::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
            Message::Reloading => NotifyState::monotonic_usec_now()
                .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
            Message::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        };
        if let Err(error) = outcome
            && !is_told
        {
            is_told = true;
            tracing::warn!("cannot tell the service manager what this process does: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(feed_ms: Option<u64>) -> (Service, Receiver<Message>) {
        let (send, received) = sync_channel(WAITING_MAX);
        let (messages, status) = (Some(send), String::new());
        (Service { messages, feed_ms, next_ms: 0, is_ready: false, status }, received)
    }

    fn said(received: &Receiver<Message>) -> Vec<String> {
        received.try_iter().map(|message| format!("{message:?}")).collect()
    }

    #[test]
    fn it_is_ready_once_and_says_what_is_new() {
        let (mut service, received) = service(None);
        assert!(service.awaits_word());
        service.is_at_work("stands by");
        service.is_at_work("stands by");
        assert!(!service.awaits_word());
        service.is_at_work("serves");
        service.turn(1_000_000);
        assert_eq!(said(&received), ["Ready(\"stands by\")", "Status(\"serves\")"]);
        service.reloads();
        service.is_at_work("serves");
        service.stops();
        assert_eq!(said(&received), ["Reloading", "Ready(\"serves\")", "Stopping"]);
    }

    #[test]
    fn the_watchdog_is_fed_by_turns_and_not_too_often() {
        let wait_ms = feed_ms(Duration::from_secs(3));
        assert_eq!((wait_ms, feed_ms(Duration::from_micros(10))), (1_000, 1));
        let (mut service, received) = service(Some(wait_ms));
        (0..2_500).for_each(|now_ms| service.turn(now_ms));
        assert_eq!(said(&received), ["Alive"; 3]);
        // A service manager that does not read stops no work.
        (0..1_000).for_each(|at| service.turn(at * 10_000));
        assert_eq!(said(&received).len(), WAITING_MAX);
    }
}
