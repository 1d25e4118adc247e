//! What a keeper leaves behind when its caller dies without a word: nothing.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::{sleep, timeout};
use volwright_lab::{Keeper, ProcessId, Server};

const ROLE: &str = "VOLWRIGHT_TEST_KEEPER_OF";

/// Not a test by itself: the caller that the test below kills. It is this program again, told where to write
/// the folder and the process of its server.
#[tokio::test]
async fn caller_that_gets_killed() {
    let Some(report) = env::var_os(ROLE) else { return };
    let keeper = Keeper::new("volwright-test-").unwrap();
    let mut command = Command::new("sh");
    // A server with a child of its own, that ignores polite signals.
    command.args(["-c", "trap '' TERM HUP INT; sleep 1000 & echo $! > pid; wait"]).current_dir(keeper.dir());
    let server = Server::start(&keeper, "stubborn", keeper.dir(), &mut command).unwrap();
    let grandchild = keeper.dir().join("pid");
    while fs::read_to_string(&grandchild).unwrap_or_default().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let grandchild = fs::read_to_string(grandchild).unwrap();
    let text = format!("{}\n{}\n{}", keeper.dir().display(), server.process().unwrap().pid, grandchild);
    let report = PathBuf::from(report);
    fs::write(report.with_extension("new"), text).unwrap();
    fs::rename(report.with_extension("new"), report).unwrap();
    sleep(Duration::from_secs(1000)).await;
}

#[tokio::test]
async fn killed_caller_leaves_no_process_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut caller = Command::new(env::current_exe().unwrap())
        .args(["--exact", "caller_that_gets_killed"])
        .env(ROLE, &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the caller has started its server", || report.exists()).await;
    let text = fs::read_to_string(&report).unwrap();
    let mut lines = text.lines();
    let folder = PathBuf::from(lines.next().unwrap());
    let processes: Vec<ProcessId> = lines.map(|pid| ProcessId::of(pid.parse().unwrap()).unwrap()).collect();
    assert_eq!(processes.len(), 2);
    assert!(folder.is_dir());

    caller.kill().unwrap(); // SIGKILL: it gets no chance to clean up
    caller.wait().unwrap();
    wait_until("the processes are gone", || processes.iter().all(|process| !process.is_alive())).await;
    wait_until("the folder is gone", || !folder.exists()).await;
}

#[tokio::test]
async fn dropping_the_keeper_ends_forgotten_servers_and_removes_the_folder() {
    let keeper = Keeper::new("volwright-test-").unwrap();
    let mut child = keeper.spawn(Command::new("sleep").arg("1000")).unwrap();
    let process = ProcessId::of(child.id()).unwrap();
    let folder = keeper.dir().to_owned();
    fs::create_dir_all(folder.join("deep/er")).unwrap();
    let drops = tokio::task::spawn_blocking(move || drop(keeper));
    child.wait().unwrap();
    drops.await.unwrap();
    assert!(!process.is_alive());
    assert!(!Path::new(&folder).exists());
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let poll = async {
            while !done() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(Duration::from_secs(20), poll).await.is_ok(), "{caller}: not so after 20 s: {what}");
    }
}
