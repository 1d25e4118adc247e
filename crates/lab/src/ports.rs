//! Loopback ports for servers that may be stopped and started again.

use std::{
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    time::Duration,
};

use anyhow::bail;
use tokio::{net::TcpStream, time::timeout};

/// Below the range the kernel takes ports from for outgoing connections (from 32768 on Linux). A port from that
/// range can be lost while its server is stopped: a client that keeps trying to reach it may be given the very
/// same port for its own end, and is then connected to itself.
const RANGE: Range<u16> = 20_000..32_000;

/// A port of 127.0.0.1 that nobody listened on a moment ago.
///
/// Somebody else may take it before the server does; whoever starts the server tries again with another port.
pub fn free_port() -> anyhow::Result<u16> {
    // So many tries fail only on a machine that uses most of the range.
    for _ in 0..200 {
        let port = fastrand::u16(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port of 127.0.0.1 between {} and {}: end some servers", RANGE.start, RANGE.end)
}

/// Whether someone accepts connections on a port of 127.0.0.1.
pub async fn is_open(port: u16) -> bool {
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    matches!(timeout(Duration::from_secs(1), connect).await, Ok(Ok(_)))
}
