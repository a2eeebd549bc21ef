//! The program `pregrant-lab`: the demo, measurements, and a Xen in user space on which backends
//! and guests are tried. It starts itself again, as the processes of its testbeds.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use pregrant_cli::{back, program};
use pregrant_lab::{bench, demo, frames, front, loopback, report, store};
use pregrant_testbed::process;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "pregrant-lab",
    version,
    about = "Pregrant's laboratory: a demo, measurements, and a Xen in user space for backends and guests",
    after_help = "Examples:
  pregrant-lab demo
  pregrant-lab bench net --path copy,staging --dir tx,rx --size 64,1500
  pregrant-lab bench --help
  pregrant-lab loopback serve --dir /tmp/xen --guest 5
  pregrant-lab front --loopback /tmp/xen --domain 5
  pregrant-lab frames --to 10.9.0.2 --count 100000
  pregrant-lab store serve --socket /tmp/xs.sock

The drivers and their tools are in pregrant (pregrant --help)."
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
    /// A guest with a network stack of its own: it answers pings, pings, and transfers
    Front(front::FrontArgs),
    /// Serve the network interfaces of guests, as `pregrant back` does
    Back(back::BackArgs),
    /// Check an interface: numbered datagrams, each acknowledged, none lost or damaged
    Frames(frames::FramesArgs),
    /// A xenstore of its own, without Xen
    Store(store::StoreArgs),
    /// Measurements, as a table or as JSON lines
    #[command(
        subcommand,
        after_help = "Examples:
  pregrant-lab bench net --path copy,map,staging --size 64,1500 --json out.jsonl
  pregrant-lab bench latency --mode poll,event
  pregrant-lab bench scale --vifs 1,64
  pregrant-lab bench limit"
    )]
    Bench(bench::BenchCommand),
    /// Make a page with plots of results that --json wrote
    Report(report::ReportArgs),
    /// A process of a testbed, started by the program itself
    #[command(hide = true)]
    Process(process::ProcessArgs),
}

fn main() -> ExitCode {
    let (cli, given) = program::parse::<Cli>("pregrant-lab");
    // Who stays says what happens to its guests; the others are silent unless something is wrong.
    let level = match cli.command {
        Command::Loopback(_) | Command::Front(_) | Command::Back(_) => "info",
        _ => "warn",
    };
    program::run("pregrant-lab", option_env!("PREGRANT_COMMIT"), level, || match cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Loopback(args) => loopback::run(args),
        Command::Front(args) => front::run(&args, &given),
        Command::Back(args) => back::run(args, &given),
        Command::Frames(args) => frames::run(args),
        Command::Store(args) => store::run(args),
        Command::Bench(command) => bench::run(command, &given),
        Command::Report(args) => report::run(args),
        Command::Process(args) => process::run(args),
    })
}
