//! Health and metrics over HTTP. Reads only, no secrets, no authentication: like every component's.

use super::health::Health;
use super::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::serve::Listener;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep};

/// Connections at a time; more wait in the kernel's backlog. The kubelet and a Prometheus or two need a handful, and each
/// costs some 20 KiB.
const MAX_CONNECTIONS: usize = 32;

/// Longest life of a connection. A scraper that keeps its connection opens a new one now and then; one that sends
/// nothing cannot keep others out for longer.
const MAX_LIFE: Duration = Duration::from_secs(60);

const INDEX: &str = "Volwright\n\n\
    /healthz  200 unless a restart would help\n\
    /readyz   200 while every watch is in sync, with details\n\
    /metrics  Prometheus\n";

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

/// Listens on `address`. `[::]`, which also serves IPv4, falls back to `0.0.0.0` on machines without IPv6.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.ip().is_unspecified()
                && address.is_ipv6()
                && error.kind() != io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port())).await
        }
        answer => answer,
    }
}

/// Serves until `stop` turns true or its sender is gone. Requests under way are finished, for at most a minute.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let routes = Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(Shared { health, metrics });
    let listener = Bounded { listener, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move {
            stop.wait_for(|stop| *stop).await.ok();
        })
        .await
}

async fn healthz(State(shared): State<Shared>) -> (StatusCode, String) {
    match shared.health.alive() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

async fn readyz(State(shared): State<Shared>) -> impl IntoResponse {
    let (code, details) = match shared.health.ready() {
        Ok(details) => (StatusCode::OK, details),
        Err(details) => (StatusCode::SERVICE_UNAVAILABLE, details),
    };
    (code, [(header::CONTENT_TYPE, "application/json")], details + "\n")
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    shared.metrics.ready(shared.health.ready().is_ok());
    ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], shared.metrics.render())
}

/// A listener that admits a bounded number of connections, each for a bounded time.
struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed, so the permit is there; without one the connection would just not be counted.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        // axum's own loop around accept(2): it waits out a lack of descriptors.
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection { stream, life: Box::pin(sleep(MAX_LIFE)), _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that gives its place back when it ends, which is after [`MAX_LIFE`] at the latest.
struct Connection {
    stream: TcpStream,
    life: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.life.as_mut().poll(context).is_ready()
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection has lived long enough")
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over(context) {
            return Poll::Ready(Err(over()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_over(context) {
            return Poll::Ready(Err(over()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn answers_follow_the_health_and_end_with_the_process() {
        let (health, metrics) = (Health::expecting(&["persistentvolumes"]), Metrics::new());
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(serve(listener, Arc::clone(&health), metrics, stopped));

        assert!(get(address, "/").await.contains("/readyz"));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/nothing").await.starts_with("HTTP/1.1 404"));
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("not synced"), "{answer}");
        assert!(get(address, "/metrics").await.contains("\nvolwright_ready 0\n"));

        health.set_synced("persistentvolumes", true);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("\nvolwright_ready 1\n"));

        stop.send(true).unwrap();
        server.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn silent_connections_cannot_take_more_than_their_share() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded { listener, permits: Arc::new(Semaphore::new(1)) };
        let _first = TcpStream::connect(address).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        let (held, _) = bounded.accept().await;
        {
            let waiting = bounded.accept();
            tokio::pin!(waiting);
            assert!(futures::poll!(waiting.as_mut()).is_pending(), "no place is free");
            drop(held);
            waiting.await;
        }
    }
}
