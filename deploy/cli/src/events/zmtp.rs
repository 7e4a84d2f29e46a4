//! ZeroMQ's protocol, ZMTP 3.0 without encryption (rfc.zeromq.org/spec/23), as far as a publisher needs it.
//!
//! Peers are not trusted: the length that a frame states is checked before any memory is taken for it, and a
//! peer that takes nothing for a while is left.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Bytes of a frame from a peer: subscriptions and requests are short.
const FRAME_BYTES_MAX: u64 = 4096;
/// Frames of a message from a peer.
const FRAMES_MAX: usize = 8;
/// How long a peer may take to say what it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a peer may take for one message.
const SEND: Duration = Duration::from_secs(30);

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("the peer does not speak ZMTP 3 without encryption")]
    Greeting,
    #[error("the peer sent a frame of {bytes} bytes: at most {FRAME_BYTES_MAX} are taken")]
    TooLong { bytes: u64 },
    #[error("the peer sent a message of more than {FRAMES_MAX} frames")]
    TooMany,
    #[error("the peer did not say what it is within {} s", HANDSHAKE.as_secs())]
    Silent,
    #[error("the peer took no message within {} s", SEND.as_secs())]
    Stuck,
}

/// What a peer sends.
pub(super) struct Reader(BufReader<OwnedReadHalf>);

/// What a peer is sent, by any task: one message at a time.
pub(super) struct Writer(Mutex<OwnedWriteHalf>);

/// Agrees with a peer on the protocol, as a socket of this type (`PUB`, `ROUTER`).
pub(super) async fn connect(
    stream: TcpStream,
    socket_type: &str,
) -> Result<(Reader, Writer), PeerError> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut reader = Reader(BufReader::new(read));
    let agree = async {
        write.write_all(&greeting()).await?;
        write.write_all(&ready(socket_type)).await?;
        reader.greeting().await?;
        let (flags, command) = reader.frame().await?;
        if flags & COMMAND != 0 && command.starts_with(b"\x05READY") {
            Ok(())
        } else {
            Err(PeerError::Greeting)
        }
    };
    timeout(HANDSHAKE, agree).await.map_err(|_| PeerError::Silent)??;
    Ok((reader, Writer(Mutex::new(write))))
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend([0, 0, 0, u8::try_from(socket_type.len()).unwrap_or(0)]);
    body.extend(socket_type.as_bytes());
    let mut frame = Vec::new();
    put(&mut frame, COMMAND, &body);
    frame
}

impl Reader {
    async fn greeting(&mut self) -> Result<(), PeerError> {
        let mut greeting = [0; GREETING_BYTES];
        self.0.read_exact(&mut greeting).await?;
        let is_known = greeting[0] == 0xff
            && greeting[9] == 0x7f
            && greeting[10] >= 3
            && greeting[12..].starts_with(b"NULL\0");
        if is_known { Ok(()) } else { Err(PeerError::Greeting) }
    }

    /// The next message, in frames. Pings are answered.
    pub(super) async fn message(&mut self, writer: &Writer) -> Result<Vec<Vec<u8>>, PeerError> {
        let mut frames = Vec::new();
        loop {
            let (flags, content) = self.frame().await?;
            if flags & COMMAND != 0 {
                // The name, two bytes of time, and what the answer repeats.
                if content.starts_with(b"\x04PING") {
                    let context = content.get(7..).unwrap_or_default();
                    writer.send_frame(COMMAND, &[b"\x04PONG", context].concat()).await?;
                }
                continue;
            }
            if frames.len() == FRAMES_MAX {
                return Err(PeerError::TooMany);
            }
            frames.push(content);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn frame(&mut self) -> Result<(u8, Vec<u8>), PeerError> {
        let flags = self.0.read_u8().await?;
        let bytes = if flags & LONG == 0 {
            u64::from(self.0.read_u8().await?)
        } else {
            self.0.read_u64().await?
        };
        let fits = usize::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX);
        let mut content = vec![0; fits.ok_or(PeerError::TooLong { bytes })?];
        self.0.read_exact(&mut content).await?;
        Ok((flags, content))
    }
}

impl Writer {
    /// Sends a message of these frames.
    pub(super) async fn send(&self, frames: &[&[u8]]) -> Result<(), PeerError> {
        let mut message = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            put(&mut message, if number + 1 < frames.len() { MORE } else { 0 }, frame);
        }
        self.send_bytes(&message).await
    }

    async fn send_frame(&self, flags: u8, content: &[u8]) -> Result<(), PeerError> {
        let mut frame = Vec::new();
        put(&mut frame, flags, content);
        self.send_bytes(&frame).await
    }

    async fn send_bytes(&self, bytes: &[u8]) -> Result<(), PeerError> {
        let send = async { self.0.lock().await.write_all(bytes).await };
        Ok(timeout(SEND, send).await.map_err(|_| PeerError::Stuck)??)
    }
}

#[expect(clippy::big_endian_bytes, reason = "the protocol writes lengths in this order")]
fn put(message: &mut Vec<u8>, flags: u8, content: &[u8]) {
    match u8::try_from(content.len()) {
        Ok(bytes) => message.extend([flags, bytes]),
        Err(_) => {
            message.push(flags | LONG);
            message.extend((content.len() as u64).to_be_bytes());
        }
    }
    message.extend(content);
}
