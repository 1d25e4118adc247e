//! Flags to commands, and a whole process but for its signals.

use super::shelf::{Args, Shelf};
use super::*;
use crate::client::Clients;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::BoxError;

fn command(args: &[&str]) -> Result<Command<Args>, clap::Error> {
    parse::<Shelf>(std::iter::once("volwright-shelf").chain(args.iter().copied()).map(OsString::from))
}

#[test]
fn the_command_line_is_sound() {
    Cli::<Args>::command().debug_assert();
}

#[test]
fn commands_take_shared_and_own_flags() {
    let Ok(Command::Run(run)) = command(&["run", "--workers=3", "--node=worker-1"]) else {
        panic!("not run")
    };
    assert_eq!((run.options.engine.workers, run.backend.node.as_deref()), (3, Some("worker-1")));
    let Ok(Command::Doctor(doctor)) = command(&["doctor", "--output=json", "--installation-id=i"]) else {
        panic!("not doctor")
    };
    assert_eq!((doctor.output, doctor.cluster.installation_id.as_deref()), (Output::Json, Some("i")));
}

#[test]
fn mistakes_are_told_with_exit_code_2() {
    for (args, expected) in [
        (&[][..], "Usage: volwright-shelf <COMMAND>"),
        (&["run", "--provisioner-name=a/b"], "a provisioner name has no slash"),
        (&["run", "--log-level=volwright=loud"], "use error, warn, info"),
        (&["walk"], "unrecognized subcommand"),
    ] {
        let Err(error) = command(args) else { panic!("{args:?} was taken") };
        assert_eq!(error.exit_code(), 2, "{args:?}");
        assert!(error.to_string().contains(expected), "{args:?}: {error}");
    }
    let Err(help) = command(&["run", "--help"]) else { panic!("no help") };
    assert_eq!(help.exit_code(), 0);
    let text = help.to_string();
    for expected in [
        "--backend-timeout",
        "[env: VOLWRIGHT_BACKEND_TIMEOUT=]",
        "[default: 2m]",
        "Cluster:",
        "Engine:",
        "Log:",
    ] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
}

/// An API server that has the namespace kube-system, but only after some refused questions; watches stay silent.
fn late_server(refusals: usize) -> (Clients, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let nth = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if nth < refusals {
                return Err(BoxError::from("connection refused"));
            }
            if request.uri().path() != "/api/v1/namespaces/kube-system" {
                std::future::pending::<()>().await;
            }
            Ok(Response::new(Body::from(br#"{"metadata":{"uid":"u-1"}}"#.to_vec())))
        }
    });
    (Clients::same(Client::new(service, "default")), asked)
}

fn options() -> RunOptions {
    let mut options = RunOptions::default();
    options.engine.http_address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    options
}

fn backend(mood: &str) -> Args {
    Args { node: None, mood: mood.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_at_the_start_is_waited_for() {
    let (clients, asked) = late_server(20);
    let (stop, stopped) = watch::channel(false);
    let process = tokio::spawn(serve::<Shelf>(options(), backend("well"), clients, stopped));
    while asked.load(Ordering::SeqCst) < 22 {
        assert!(!process.is_finished());
        sleep(Duration::from_secs(1)).await;
    }
    stop.send_replace(true);
    process.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_still_waits_can_be_stopped() {
    let (clients, _) = late_server(usize::MAX);
    let (stop, stopped) = watch::channel(false);
    let process = tokio::spawn(serve::<Shelf>(options(), backend("well"), clients, stopped));
    sleep(Duration::from_secs(600)).await;
    assert!(!process.is_finished());
    stop.send_replace(true);
    process.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_cannot_start_says_whether_a_restart_helps() {
    for (mood, code, text) in [("invalid", 2, "there is no such mood"), ("fallen", 1, "the shelf has fallen")]
    {
        let (_stop, stopped) = watch::channel(false);
        let error = serve::<Shelf>(options(), backend(mood), late_server(0).0, stopped).await.unwrap_err();
        assert_eq!(error.exit_code(), code, "{mood}");
        assert!(chain(&error).contains(text), "{mood}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options();
    options.engine.http_address = Some(taken.local_addr().unwrap());
    let (_stop, stopped) = watch::channel(false);
    let error = serve::<Shelf>(options, backend("well"), late_server(0).0, stopped).await.unwrap_err();
    assert!(error.to_string().contains("choose another --http-address"), "{error}");
}
