//! The provisioner's process: all it has is a backend.

fn main() -> std::process::ExitCode {
    volwright_controller::main::<volwright_btrfs_example::Btrfs>()
}
