//! The one command, `pregrant`. Exit codes: 0 done, 1 failed (stderr says what, where and what to do), 2 wrong usage.

mod actor;
mod bench;
mod demo;
mod guest_stack;
mod scene;
mod screen;
mod store;
mod transfer;

use clap::{Parser, Subcommand};
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
  pregrant store serve --socket /tmp/xs.sock"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch two guests exchange TCP traffic through a backend, then path measured against path (no root, no Xen)
    Demo(demo::DemoArgs),
    /// xenstore: the tree of keys in which the two ends of a device find each other
    Store(store::StoreArgs),
    /// Measurements, as a table or as JSON lines
    #[command(
        subcommand,
        after_help = "Examples:
  pregrant bench net --path copy,map,staging --size 64,1500 --json out.jsonl
  pregrant bench latency --mode poll,event
  pregrant bench limit"
    )]
    Bench(bench::BenchCommand),
    /// A process of a scene, started by the program itself
    #[command(hide = true)]
    Actor(actor::ActorArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let result = match cli.command {
        Command::Store(args) => store::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Actor(args) => actor::run(args),
        Command::Bench(command) => bench::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if screen::nobody_reads(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pregrant: {e}");
            ExitCode::FAILURE
        }
    }
}
