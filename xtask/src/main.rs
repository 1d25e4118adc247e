//! Volwright's own tasks, as `cargo xtask <task>`. What belongs here: whatever a contributor or the CI runs that
//! `cargo` alone cannot do. One file a task; this one is only the table.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

mod cargo;
mod cluster;
mod demo;
mod mutants;
mod new_backend;
mod programs;
mod simulate;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Volwright's own tasks",
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

/// Each task's help stands with its arguments.
#[derive(Debug, Subcommand)]
enum Task {
    Demo(demo::Args),
    Cluster(cluster::Args),
    Simulate(simulate::Args),
    Mutants(mutants::Args),
    NewBackend(new_backend::Args),
    Test(test::Args),
    Tidy(tidy::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Demo(args) => demo::run(args).await,
        Task::Cluster(args) => cluster::run(args).await,
        Task::Mutants(args) => mutants::execute(&args),
        Task::NewBackend(args) => new_backend::run(&args),
        Task::Simulate(args) => simulate::execute(&args),
        Task::Test(args) => test::run(&args),
        Task::Tidy(args) => tidy::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain in one line, and no backtrace: the messages say what to do.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
