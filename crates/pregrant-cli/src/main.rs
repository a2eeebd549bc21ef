//! The program `pregrant`: what an operator of a driver domain runs, and who owns a guest.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use pregrant_cli::{
    back, blkback, blkfront, doctor, front, hotplug, lab_command, program, screen, store, top,
};
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "pregrant",
    version,
    about = "Xen split drivers around memory that is granted before the data comes",
    after_help = "Examples:
  pregrant doctor
  pregrant back
  pregrant back --loopback /tmp/xen
  pregrant front --tap eth0
  pregrant blkfront --loopback /tmp/xen --domain 5 --mount /mnt/xvda
  pregrant top --loopback /tmp/xen
  pregrant store ls /local/domain/0/backend/vif

The demo, measurements and the software Xen are in pregrant-lab (pregrant-lab --help)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the network interfaces of guests
    Back(back::BackArgs),
    /// Serve the disks of guests
    Blkback(blkback::BlkBackArgs),
    /// A guest's network frontend: an interface for its kernel
    Front(front::FrontArgs),
    /// A guest's disk frontend: the disk as a file for any program
    Blkfront(blkfront::BlkFrontArgs),
    /// Run a hotplug script for a backend (started by systemd)
    Hotplug(hotplug::HotplugArgs),
    /// Check this machine, its vifs and disks, and say what to do
    Doctor(doctor::DoctorArgs),
    /// Statistics of running backends: a live table, JSON, or Prometheus' text format
    Top(top::TopArgs),
    /// xenstore: the tree of keys in which the two ends of a device find each other
    Store(store::StoreArgs),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(remedy) = lab_command::remedy(&args) {
        screen::say(format_args!("pregrant: {remedy}"));
        return ExitCode::from(program::WRONG_USAGE);
    }
    let (cli, given) = program::parse::<Cli>("pregrant");
    // Long-running commands log what happens to guests; the others log only warnings.
    let level = match cli.command {
        Command::Doctor(_) | Command::Top(_) | Command::Store(_) => "warn",
        _ => "info",
    };
    program::run("pregrant", option_env!("PREGRANT_COMMIT"), level, || match cli.command {
        Command::Back(args) => back::run(args, &given),
        Command::Blkback(args) => blkback::run(&args, &given),
        Command::Front(args) => front::run(&args, &given),
        Command::Blkfront(args) => blkfront::run(args, &given),
        Command::Hotplug(args) => hotplug::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(args),
        Command::Store(args) => store::run(args),
    })
}
