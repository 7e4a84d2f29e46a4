//! Answers requests for figures, on one thread. A client that is slow, or sends nothing, ends after
//! some seconds, and no other waits for it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::family::{Family, text};

/// Connections that are open at once.
const CONNECTIONS_MAX: usize = 16;
/// For how long a request may take to arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a connection is open.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long no connection is taken after one could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why figures are not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot serve metrics at {address}: {source}; give another address or port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No thread for the server.
    #[error("cannot start the thread that serves metrics: {0}")]
    Thread(std::io::Error),
}

/// Whether a program does its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// It does.
    Good,
    /// It does not, and why.
    Bad(String),
}

/// What is served at a path of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    /// Its type, with the encoding.
    pub content_type: &'static str,
    /// What a browser may do with it: the value of `Content-Security-Policy`.
    pub policy: String,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// What is served. Called on the thread of the server.
pub trait Source: Send + Sync + 'static {
    /// The figures of now.
    fn families(&self) -> Vec<Family>;
    /// Whether the program does its work.
    fn health(&self) -> Health;
    /// What is at another path, if anything is.
    fn document(&self, path: &str) -> Option<Document> {
        let _ = path;
        None
    }
}

/// Serves figures until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Serves what `source` says at `address`. Port 0 is any that is free.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(address: SocketAddr, source: impl Source) -> Result<Self, ServeError> {
        let bind = |source| ServeError::Bind { address, source };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(ServeError::Thread)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let body = move || {
            let accept = accept(listener, Arc::new(source), address.ip().is_loopback());
            runtime.block_on(async {
                tokio::select! {
                    () = accept => {}
                    () = stopped.notified() => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("rackline-metrics".to_owned()).spawn(body);
        let thread = Some(thread.map_err(ServeError::Thread)?);
        tracing::info!(%address, "serves /metrics and /healthz");
        Ok(Self { address, stop, thread })
    }

    /// Where it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        // One that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(listener: TcpListener, source: Arc<impl Source>, is_loopback: bool) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    serve(stream, source, is_loopback).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("a request for metrics is not taken: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, source: Arc<impl Source>, is_loopback: bool) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let response = answer(&request, &*source, is_loopback);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!("a request for metrics broke off: {error}"),
    }
}

fn answer<B>(
    request: &Request<B>,
    source: &impl Source,
    is_loopback: bool,
) -> Response<Full<Bytes>> {
    const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let why = "only GET and HEAD are answered\n";
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, why);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => respond(StatusCode::OK, METRICS, text(&source.families())),
        "/healthz" => match source.health() {
            Health::Good => plain(StatusCode::OK, "ok\n"),
            Health::Bad(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        // A page of another site may give its own name the address of this host, and read on.
        _ if is_loopback && !names_this_host(request) => {
            let why = "ask for http://127.0.0.1 or localhost with the port\n";
            plain(StatusCode::FORBIDDEN, why)
        }
        path => match source.document(path) {
            Some(document) => with_policy(document),
            None => {
                let why = "nothing is here; ask for /metrics or /healthz\n";
                plain(StatusCode::NOT_FOUND, why)
            }
        },
    }
}

/// Whether the client named this host by an address, or as the host that it runs on.
fn names_this_host<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok()
}

fn with_policy(document: Document) -> Response<Full<Bytes>> {
    let Document { content_type, policy, body } = document;
    let mut response = respond(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    // A policy that cannot be sent allows nothing.
    let policy = HeaderValue::from_str(&policy);
    let policy = policy.unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"));
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    struct Fixed(Health);

    impl Source for Fixed {
        fn families(&self) -> Vec<Family> {
            vec![Family::gauge("blocks", "Blocks.").with(&[], 7)]
        }

        fn health(&self) -> Health {
            self.0.clone()
        }

        fn document(&self, path: &str) -> Option<Document> {
            (path == "/a").then(|| Document {
                content_type: "text/html; charset=utf-8",
                policy: "default-src 'self'".to_owned(),
                body: b"page".to_vec(),
            })
        }
    }

    fn start(health: Health) -> MetricsServer {
        MetricsServer::start((Ipv4Addr::LOCALHOST, 0).into(), Fixed(health)).unwrap()
    }

    /// A request line, or one and a header behind a bar.
    fn ask(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let host = if request.contains("Host:") { "" } else { "\r\nHost: [::1]:99" };
        let end = "\r\nConnection: close\r\n\r\n";
        write!(stream, "{}{host}{end}", request.replacen('|', " HTTP/1.1\r\n", 1)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_and_health_are_served_and_nothing_else() {
        let server = start(Health::Good);
        let metrics = ask(&server, "GET /metrics HTTP/1.1");
        assert!(
            metrics.starts_with("HTTP/1.1 200") && metrics.ends_with("\nblocks 7\n"),
            "{metrics}"
        );
        assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
        assert!(ask(&server, "GET /healthz HTTP/1.1").ends_with("\r\n\r\nok\n"));
        assert!(ask(&server, "GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
        let bad = start(Health::Bad("no agent".to_owned()));
        let health = ask(&bad, "GET /healthz HTTP/1.1");
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("no agent\n"), "{health}");
        let taken = MetricsServer::start(server.address(), Fixed(Health::Good)).unwrap_err();
        assert!(taken.to_string().contains(&server.address().to_string()), "{taken}");
    }

    #[test]
    fn documents_have_a_policy_and_no_other_site_reads_them() {
        let server = start(Health::Good);
        let page = ask(&server, "GET /a HTTP/1.1");
        assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("\r\n\r\npage"), "{page}");
        for header in [
            "content-type: text/html; charset=utf-8\r\n",
            "content-security-policy: default-src 'self'\r\n",
            "x-content-type-options: nosniff\r\n",
            "cache-control: no-store\r\n",
        ] {
            assert!(page.contains(header), "{header} is not in {page}");
        }
        for (host, status) in [
            ("localhost", 200),
            ("LOCALHOST:9464", 200),
            ("127.0.0.1:9464", 200),
            ("evil.example:9464", 403),
            ("localhost.evil.example", 403),
            ("", 403),
        ] {
            let answer = ask(&server, &format!("GET /a|Host: {host}"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
        }
        assert!(ask(&server, "GET /metrics|Host: evil.example").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_client_that_sends_nothing_keeps_nobody_waiting() {
        let server = start(Health::Good);
        let silent: Vec<_> =
            (0..4).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        assert!(ask(&server, "GET /healthz HTTP/1.1").ends_with("ok\n"));
        drop(server);
        drop(silent);
    }
}
