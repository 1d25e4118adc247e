//! Logs: one line per happening on standard error, as text for people or as JSON for collectors.

use clap::ValueEnum;
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What always applies unless the user's filter names the same target.
///
/// kube's trace layer logs every 5xx and every refused connection as an error, which the engine already reports once,
/// with what it does about it. And kube prints an answer that it cannot decode in full, at level warn: it may be a Secret.
const QUIETED: &str = "kube_client::client=error,kube_client::client::builder=off";

/// Flags for the log.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// How a line looks. Text for people, JSON for log collectors
    #[arg(long, env = "VOLWRIGHT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// How much is logged: error, warn, info, debug or trace; or per module, such as
    /// "info,volwright_controller=debug". At "info" starts, stops, finished operations and everything unexpected
    #[arg(long, env = "VOLWRIGHT_LOG", value_name = "FILTER", default_value = "info", value_parser = filter)]
    pub log_level: String,
}

impl Default for LogArgs {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log_level: "info".to_owned() }
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Checks a filter while the flags are read, so that a typo is a usage error and not a silent log.
fn filter(text: &str) -> Result<String, String> {
    parse(text).map(|_| text.to_owned())
}

fn parse(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(format!("{QUIETED},{text}")).map_err(|error| {
        format!("{error}; use error, warn, info, debug or trace, or a list such as info,volwright_controller=debug")
    })
}

/// Starts the log and makes panics part of it. A second call in the same process (tests) changes nothing.
pub(crate) fn init(args: &LogArgs) {
    let filter = parse(&args.log_level).unwrap_or_else(|_| EnvFilter::new(QUIETED));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match args.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
}

/// A panic in a task ends that task and not the process, so it must not go by unseen, nor outside the chosen format.
fn log_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    // Empty unless RUST_BACKTRACE asks for one.
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(
        error = text,
        place,
        thread = thread.name().unwrap_or("(unnamed)"),
        %backtrace,
        "A task panicked; this is a bug, please report it."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked_and_cannot_open_what_is_quieted_by_a_level_alone() {
        for good in ["info", "debug", "info,volwright_controller=trace", "warn,kube_client::client=debug"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        let error = filter("volwright_controller=loud").unwrap_err();
        assert!(error.contains("use error, warn, info, debug or trace"), "{error}");
        let text = parse("trace").unwrap().to_string();
        assert!(text.contains("kube_client::client::builder=off"), "{text}");
        assert!(text.contains("trace"), "{text}");
        let text = parse("kube_client::client=debug").unwrap().to_string();
        assert!(
            text.contains("kube_client::client=debug") && !text.contains("kube_client::client=error"),
            "{text}"
        );
    }
}
