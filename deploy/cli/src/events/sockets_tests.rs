//! The sockets, and peers that do what none should.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const SOON: Duration = Duration::from_secs(30);
const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
const ALL: &[u8] = b"\0\x01\x01";
/// Asks for all batches from number 0 on.
const REPLAY: &[u8] = b"\x01\0\0\x08\0\0\0\0\0\0\0\0";

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

async fn sockets() -> Sockets {
    Sockets::bind("tcp://127.0.0.1:0", Some("tcp://127.0.0.1:0"), "kv", 0).await.unwrap()
}

async fn peer(at: SocketAddr, says: &[&[u8]]) -> TcpStream {
    let mut stream = TcpStream::connect(at).await.unwrap();
    for bytes in says {
        stream.write_all(bytes).await.unwrap();
    }
    stream
}

/// A peer that did what it should until now, and was answered.
async fn good_peer(at: SocketAddr) -> TcpStream {
    let mut stream = peer(at, &[&greeting(), READY]).await;
    let mut greeting = [0; 64];
    stream.read_exact(&mut greeting).await.unwrap();
    assert!(frame(&mut stream).await.1.starts_with(b"\x05READY"));
    stream
}

async fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let read = async {
        let flags = stream.read_u8().await.unwrap();
        let bytes = match flags & 2 {
            0 => u64::from(stream.read_u8().await.unwrap()),
            _ => stream.read_u64().await.unwrap(),
        };
        let mut content = vec![0; usize::try_from(bytes).unwrap()];
        stream.read_exact(&mut content).await.unwrap();
        (flags, content)
    };
    tokio::time::timeout(SOON, read).await.expect("nothing comes")
}

async fn message(stream: &mut TcpStream) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let (flags, content) = frame(stream).await;
        frames.push(content);
        if flags & 1 == 0 {
            return frames;
        }
    }
}

fn number(batch: &[u8]) -> u64 {
    u64::from_be_bytes(batch.try_into().unwrap())
}

/// On one thread the sender looks at a batch before it reads what a subscriber wants next.
#[tokio::test]
async fn a_subscriber_gets_the_topic_that_it_wants() {
    let sockets = sockets().await;
    let mut subscriber = good_peer(sockets.events).await;
    // A ping tells that what was sent before it was taken in.
    let ping = b"\x04\x09\x04PING\0\0ab";
    subscriber.write_all(&[b"\0\x04\x01kvx", &ping[..]].concat()).await.unwrap();
    assert_eq!(frame(&mut subscriber).await, (4, b"\x04PONGab".to_vec()));
    sockets.send(vec![1]);
    subscriber.write_all(&[b"\0\x02\x01k", &ping[..]].concat()).await.unwrap();
    assert_eq!(frame(&mut subscriber).await.0, 4);
    sockets.send(vec![2; 300]);
    let got = message(&mut subscriber).await;
    assert_eq!((got[0].as_slice(), number(&got[1]), got[2].len()), (&b"kv"[..], 1, 300));
    subscriber.write_all(&[b"\0\x02\x00k", &ping[..]].concat()).await.unwrap();
    assert_eq!(frame(&mut subscriber).await.0, 4);
    sockets.send(vec![3]);
    subscriber.write_all(ping).await.unwrap();
    assert_eq!(frame(&mut subscriber).await.0, 4, "nothing but the answer to the ping");
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_ends_the_connection_of_its_peer_alone() {
    let sockets = sockets().await;
    let mut good = good_peer(sockets.events).await;
    good.write_all(&[ALL, b"\x04\x07\x04PING\0\0"].concat()).await.unwrap();
    assert_eq!(frame(&mut good).await.0, 4);
    let (mut old, mut secret) = (greeting(), greeting());
    old[10] = 1;
    secret[12..17].copy_from_slice(b"CURVE");
    let (greeting, long) = (greeting(), b"\x02\0\0\x01\0\0\0\0\0");
    let nonsense: [&[&[u8]]; 9] = [
        &[&b"GET / HTTP/1.1\r\nHost: rack\r\nAccept: */*\r\nUser-Agent: a router\r\n\r\n"[..]],
        &[&old],
        &[&secret],
        // A frame of 2^40 bytes, before and after the peers agreed.
        &[&greeting, long],
        &[&greeting, READY, long],
        &[&greeting, READY, b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"],
        &[&greeting, b"\x04\x06\x05ERROR"],
        &[&greeting, ALL],
        &[&greeting, READY, &[1, 0].repeat(9)],
    ];
    for at in [sockets.events, sockets.replays.unwrap()] {
        for (case, bytes) in nonsense.iter().enumerate() {
            let mut bad = peer(at, bytes).await;
            let mut rest = Vec::new();
            // It may be reset, as it was not read to its end.
            let _ = tokio::time::timeout(SOON, bad.read_to_end(&mut rest))
                .await
                .unwrap_or_else(|_| panic!("case {case} is still connected to {at}"));
        }
    }
    sockets.send(vec![7]);
    assert_eq!(message(&mut good).await[2], [7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_read_nothing_hold_up_nobody() {
    let mut sockets = sockets().await;
    let deaf = good_peer(sockets.events).await;
    deaf.try_write(ALL).unwrap();
    let mut asks = good_peer(sockets.replays.unwrap()).await;
    for batch in 0..60 {
        sockets.send(vec![batch; 1 << 20]);
    }
    // Each of the answers would have 60 MiB.
    for _ in 0..20 {
        asks.write_all(REPLAY).await.unwrap();
    }
    let mut good = good_peer(sockets.events).await;
    good.write_all(&[ALL, b"\x04\x07\x04PING\0\0"].concat()).await.unwrap();
    assert_eq!(frame(&mut good).await.0, 4);
    sockets.send(vec![9]);
    let got = message(&mut good).await;
    assert_eq!((number(&got[1]), got[2].as_slice()), (60, &[9][..]));
    let mut replayed = good_peer(sockets.replays.unwrap()).await;
    replayed.write_all(REPLAY).await.unwrap();
    for expected in 0..=60 {
        let got = message(&mut replayed).await;
        assert_eq!((got[0].len(), number(&got[2])), (0, expected));
    }
    assert_eq!(message(&mut replayed).await[2], END);
    assert!(sockets.wanted.try_recv().is_err(), "all of it was kept");
    drop((deaf, asks));
}
