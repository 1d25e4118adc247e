//! `volwright-template`: the provisioner's process.

use std::process::ExitCode;
use volwright_template::Template;

fn main() -> ExitCode {
    volwright_controller::main::<Template>()
}
