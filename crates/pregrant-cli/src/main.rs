//! The one command, `pregrant`. Exit codes: 0 done, 1 failed (stderr says what, where and what to
//! do), 2 wrong usage, 3 the machine that the process was on has ended.
#![forbid(unsafe_code)]

mod back;
mod blkback;
mod blkfront;
mod daemon;
mod doctor;
mod frames;
mod front;
mod hotplug;
mod kernel_driver;
mod log_line;
mod loopback;
mod loopback_guest;
mod notify;
mod status_reader;
mod stop;
mod store;
mod top;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use log_line::LogLine;
use pregrant_lab::usage::{Given, Usage};
use pregrant_lab::{bench, demo, machine, process, report, screen, signals};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "pregrant",
    version,
    about = "Xen split drivers around memory that is granted before the data comes",
    after_help = "Examples:
  pregrant demo
  pregrant bench net --path copy,staging --dir tx,rx --size 64,1500
  pregrant bench --help
  pregrant loopback serve --dir /tmp/xen --guest 5
  pregrant back --loopback /tmp/xen
  pregrant front --loopback /tmp/xen --domain 5
  pregrant doctor
  pregrant front --tap eth0
  pregrant frames --to 10.9.0.2 --count 100000
  pregrant blkfront --loopback /tmp/xen --domain 5 --mount /mnt/xvda
  pregrant top --loopback /tmp/xen
  pregrant store serve --socket /tmp/xs.sock"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run two guests and a backend, then compare the paths (no root, no Xen)
    Demo(demo::DemoArgs),
    /// Run a software Xen, to start backends and guests on it by hand
    Loopback(loopback::LoopbackArgs),
    /// Serve the network interfaces of guests
    Back(back::BackArgs),
    /// Serve the disks of guests
    Blkback(blkback::BlkBackArgs),
    /// A guest's network frontend: an interface for its kernel, or a small traffic tool
    Front(front::FrontArgs),
    /// A guest's disk frontend: the disk as a file for any program
    Blkfront(blkfront::BlkFrontArgs),
    /// Run a hotplug script for a backend (started by systemd)
    Hotplug(hotplug::HotplugArgs),
    /// Check this machine, its vifs and disks, and say what to do
    Doctor(doctor::DoctorArgs),
    /// Check an interface: numbered datagrams, each acknowledged, none lost or damaged
    Frames(frames::FramesArgs),
    /// Statistics of running backends: a live table, JSON, or Prometheus' text format
    Top(top::TopArgs),
    /// xenstore: the tree of keys in which the two ends of a device find each other
    Store(store::StoreArgs),
    /// Measurements, as a table or as JSON lines
    #[command(
        subcommand,
        after_help = "Examples:
  pregrant bench net --path copy,map,staging --size 64,1500 --json out.jsonl
  pregrant bench latency --mode poll,event
  pregrant bench scale --vifs 1,64
  pregrant bench limit"
    )]
    Bench(bench::BenchCommand),
    /// Make a page with plots of results that --json wrote
    Report(report::ReportArgs),
    /// A process of a testbed, started by the program itself
    #[command(hide = true)]
    Process(process::ProcessArgs),
}

const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(commit) = option_env!("PREGRANT_COMMIT") {
        pregrant_host::program::set_commit(commit);
    }
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let given = Given::of(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    // Long-running commands log what happens to guests; the others log only warnings.
    let level = match cli.command {
        Command::Loopback(_)
        | Command::Back(_)
        | Command::Blkback(_)
        | Command::Front(_)
        | Command::Blkfront(_)
        | Command::Hotplug(_) => "info",
        _ => "warn",
    };
    let log_line = LogLine::of_stderr();
    log_line.begin(level);
    if let Err(e) = signals::begin() {
        log::warn!("cannot reset the signal mask and dispositions: {e}; keeping those of the parent process");
    }
    let result = match cli.command {
        Command::Loopback(args) => loopback::run(args),
        Command::Back(args) => back::run(args, &given),
        Command::Blkback(args) => blkback::run(&args, &given),
        Command::Front(args) => front::run(args, &given),
        Command::Blkfront(args) => blkfront::run(args, &given),
        Command::Hotplug(args) => hotplug::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Frames(args) => frames::run(args),
        Command::Top(args) => top::run(args),
        Command::Store(args) => store::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Report(args) => report::run(args),
        Command::Process(args) => process::run(args),
        Command::Bench(command) => bench::run(command, &given),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if screen::has_no_reader(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            screen::say(log_line.last_words(&format_args!("pregrant: {e}")));
            if e.is::<Usage>() {
                return ExitCode::from(WRONG_USAGE);
            }
            match e.downcast_ref::<machine::MachineEnded>() {
                Some(_) => ExitCode::from(machine::MACHINE_ENDED),
                None => ExitCode::FAILURE,
            }
        }
    }
}
