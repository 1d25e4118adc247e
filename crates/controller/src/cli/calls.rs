//! What commands that work on the cluster have in common: a bounded request, and a line of output.

use super::RunError;
use crate::client::describe;
use std::fmt::Arguments;
use std::io::Write;
use std::time::Duration;
use tokio::time::timeout;

/// Of one request to the API server.
const DEADLINE: Duration = Duration::from_secs(30);

/// `verb` and `resource` are for the message.
pub(super) async fn within<T>(
    verb: &str,
    resource: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RunError> {
    match timeout(DEADLINE, request).await {
        Ok(answer) => answer.map_err(|error| RunError::Request(describe(&error, verb, resource))),
        Err(_) => {
            Err(RunError::Request(format!("{verb} {resource}: no answer within {} s", DEADLINE.as_secs())))
        }
    }
}

pub(super) fn say(out: &mut impl Write, line: Arguments<'_>) -> Result<(), RunError> {
    writeln!(out, "{line}").map_err(RunError::System)
}
