//! Answers requests for figures, on one thread. A client that is slow, or sends nothing, ends after
//! some seconds, and no other waits for it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
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

/// What is served. Called on the thread of the server.
pub trait Source: Send + Sync + 'static {
    /// The figures of now.
    fn families(&self) -> Vec<Family>;
    /// Whether the program does its work.
    fn health(&self) -> Health;
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
            let accept = accept(listener, Arc::new(source));
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

async fn accept(listener: TcpListener, source: Arc<impl Source>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    serve(stream, source).await;
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

async fn serve(stream: TcpStream, source: Arc<impl Source>) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let response = answer(&request, &*source);
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

fn answer<B>(request: &Request<B>, source: &impl Source) -> Response<Full<Bytes>> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match (is_read, request.uri().path()) {
        (false, _) => {
            let body = "only GET and HEAD are answered\n".to_owned();
            (StatusCode::METHOD_NOT_ALLOWED, PLAIN, body)
        }
        (true, "/metrics") => (StatusCode::OK, METRICS, text(&source.families())),
        (true, "/healthz") => match source.health() {
            Health::Good => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Health::Bad(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
        },
        (true, _) => {
            let body = "nothing is here; ask for /metrics or /healthz\n".to_owned();
            (StatusCode::NOT_FOUND, PLAIN, body)
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
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
    }

    fn start(health: Health) -> MetricsServer {
        MetricsServer::start((Ipv4Addr::LOCALHOST, 0).into(), Fixed(health)).unwrap()
    }

    fn ask(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_and_health_are_served_and_nothing_else() {
        let server = start(Health::Good);
        let metrics = ask(&server, "GET /metrics");
        assert!(
            metrics.starts_with("HTTP/1.1 200") && metrics.ends_with("\nblocks 7\n"),
            "{metrics}"
        );
        assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
        assert!(ask(&server, "GET /healthz").ends_with("\r\n\r\nok\n"));
        assert!(ask(&server, "GET /").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /metrics").starts_with("HTTP/1.1 405"));
        let bad = start(Health::Bad("no agent".to_owned()));
        let health = ask(&bad, "GET /healthz");
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("no agent\n"), "{health}");
        let taken = MetricsServer::start(server.address(), Fixed(Health::Good)).unwrap_err();
        assert!(taken.to_string().contains(&server.address().to_string()), "{taken}");
    }

    #[test]
    fn a_client_that_sends_nothing_keeps_nobody_waiting() {
        let server = start(Health::Good);
        let silent: Vec<_> =
            (0..4).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        assert!(ask(&server, "GET /healthz").ends_with("ok\n"));
        drop(server);
        drop(silent);
    }
}
