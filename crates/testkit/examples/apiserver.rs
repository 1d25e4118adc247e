//! The in-process API server with its controllers on a port, to try it with kubectl:
//! `cargo run -p volwright-testkit --example apiserver -- 8001`, then `kubectl --server http://127.0.0.1:8001 get pv`.

use std::time::Duration;
use volwright_testkit::apiserver::{ApiServer, Options, cluster};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8001);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let server = ApiServer::new(Options::default());
    tokio::spawn(cluster::run(server.clone(), Duration::from_millis(50)));
    let stop = async {
        tokio::signal::ctrl_c().await.ok();
    };
    server.serve(listener, stop).await
}
