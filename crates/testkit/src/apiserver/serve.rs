//! The same server over HTTP: for kubectl, and for binaries that are tested from outside.

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use std::future::Future;
use tokio::net::TcpListener;

use super::ApiServer;
use super::handle::{BODY_LIMIT, handle};

impl ApiServer {
    /// Serves plain HTTP/1.1 to whoever can connect, as anybody, until `stop`. Open watches are cut at the end.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let server = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                // What is too large is refused by its length alone.
                let body = match to_bytes(body, BODY_LIMIT).await {
                    Ok(body) => body,
                    Err(_) => vec![b' '; BODY_LIMIT + 1].into(),
                };
                handle(&server.shared, None, &parts, &body)
            }
        });
        let server = self.clone();
        let stop = async move {
            stop.await;
            server.cut_watches();
        };
        axum::serve(listener, router).with_graceful_shutdown(stop).await
    }
}
