//! `cargo xtask`: the same commands on a desk and in CI.
//!
//! ```text
//!   cargo xtask ci              every layer, one after the other
//!   cargo xtask ci LAYER...     only these; `ci rest` is every layer but `test`
//!   cargo xtask test            the layer `test`; its last line counts tests
//!   cargo xtask rig [NAME...] [--workers N,N] [--debian N] [--guest-debian N] [--dom0 pv|pvh] [--back process|module]
//!                   [--icount] [--profile] [--poison] [--set NAME=VALUE]
//!                               real Xen in QEMU: all scenarios of rig/scenarios, or those with such names; each once with each
//!                               number of `pregrant back`'s worker threads; --debian 13: Xen, dom0 and guests of that
//!                               release (12, 13, 13-backports), --guest-debian: the guests alone; --icount: where a microsecond is 1000
//!                               instructions; --profile: of scenario 32 by function (`rig profile`: the last one's tables
//!                               again); --poison: kernels check and poison what is free; --set FRAMES=10000: for a scenario's
//!                               variables that have defaults
//!   cargo xtask list            the layers, and what each shows; `rig list` the scenarios
//!   cargo xtask fuzz [TARGET...] [--seconds N] [--jobs N] [--keep]
//!                               fuzz targets for longer (60 s each); --keep: into fuzz/corpus with what is new
//!   cargo xtask figures [--runs N] [--anyway]
//!                               the demo measured, into docs/results and docs/results.md; on an idle machine
//!   cargo xtask figures --page  docs/results.md from docs/results/*.jsonl
//!   cargo xtask pair FIRST SECOND [--turns N] -- bench ARGS [-- ARGS of SECOND alone]
//!                               two `pregrant` programs in turns: medians and quartiles of ratios, as JSON lines
//!   cargo xtask messages [--rekey]
//!                               docs/messages.md from the source and docs/messages.toml; --rekey: texts that changed
//!                               keep their remedies
//!   cargo xtask linux header    linux/module/core.h from linux/core/src: the functions that C and Rust share
//!   cargo xtask linux debug     a kernel that finds a module's mistakes, from Debian's source, for the rig's and the
//!                               self-test's release 12-debug, with the modules for it: takes long, by hand
//!   cargo xtask linux [selftest] [--headers DIR | --release RELEASE] [--frames N]
//!                               the kernel module of linux/, by the headers of this machine, of DIR or of a Debian;
//!                               selftest: both ends of a vif in a kernel, in QEMU without Xen
//!   cargo xtask package guest [--try RELEASE] [--dracut]
//!                               pregrant-guest-dkms, a package of the kernel module; --try: installed and removed in
//!                               such a Debian; --dracut: where dracut makes the initial file system
//!   cargo xtask package back [--try RELEASE]
//!                               pregrant-back-dkms, the same of the back's module, for hosts
//!   cargo xtask book            docs as one site, target/book/html, by mdBook
//! ```
//!
//! A layer is one kind of check (docs/testing.md). All of them run even when one fails; the last
//! line counts them.
#![forbid(unsafe_code)]

mod book;
mod console;
mod figures;
mod fuzz;
mod layer;
mod linux;
mod markdown;
mod messages;
mod package;
mod pair;
mod rig;
mod silence;
mod suite;
mod tally;
mod tidy;
mod tool;
mod units;
mod workspace;

use layer::{LAYERS, Layer};
use std::process::ExitCode;
use std::time::Instant;
use workspace::Workspace;

const USAGE: &str = "usage: cargo xtask ci [rest|LAYER...] | cargo xtask test | cargo xtask list
       cargo xtask rig [NAME...] [--workers N,N] [--debian RELEASE] [--guest-debian RELEASE] [--dom0 pv|pvh]
                       [--back process|module] [--icount] [--profile] [--poison] [--set NAME=VALUE] | cargo xtask rig list
       cargo xtask rig profile [--debian RELEASE] [--guest-debian RELEASE]
       cargo xtask fuzz [TARGET...] [--seconds N] [--jobs N] [--keep]
       cargo xtask figures [--runs N] [--anyway] | cargo xtask figures --page
       cargo xtask pair FIRST SECOND [--turns N] -- bench ARGS.. [-- ARGS of SECOND alone]
       cargo xtask linux header | cargo xtask linux debug | cargo xtask linux [selftest] [--headers DIR | --release RELEASE] [--frames N]
       cargo xtask package guest [--try RELEASE]... [--dracut] | cargo xtask package back [--try RELEASE]...
       cargo xtask messages [--rekey] | cargo xtask book
       a RELEASE of Debian: 12, 13, 13-backports (the newest kernel of its backports); for guests and modules 11 too;
       for the rig and the self-test 12-debug (the kernel of `cargo xtask linux debug`)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let chosen = match args.as_slice() {
        ["list"] => {
            for layer in LAYERS {
                println!("{:8} {}", layer.name, layer.shows);
            }
            return ExitCode::SUCCESS;
        }
        ["-h" | "--help" | "help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["rig", "list"] => return end(rig::list(&Workspace::find())),
        ["rig", "profile", args @ ..] => match rig::Selection::parse(args) {
            Ok(selection) => return end(rig::profile(&Workspace::find(), &selection)),
            Err(what) => Err(what),
        },
        ["rig", args @ ..] => match rig::Selection::parse(args) {
            Ok(selection) => return end(rig::play(&Workspace::find(), &selection)),
            Err(what) => Err(what),
        },
        ["fuzz", args @ ..] => match fuzz::Plan::parse(args) {
            Ok(plan) => return end(fuzz::fuzz(&Workspace::find(), &plan)),
            Err(what) => Err(what),
        },
        ["figures", args @ ..] => match figures::Plan::parse(args) {
            Ok(plan) => return end(figures::make(&Workspace::find(), &plan)),
            Err(what) => Err(what),
        },
        ["pair", args @ ..] => match pair::Plan::parse(args) {
            Ok(plan) => return end(pair::measure(&Workspace::find(), &plan)),
            Err(what) => Err(what),
        },
        ["messages", args @ ..] => match messages::Plan::parse(args) {
            Ok(plan) => return end(messages::make(&Workspace::find(), plan)),
            Err(what) => Err(what),
        },
        ["linux", args @ ..] => match linux::Selection::parse(args) {
            Ok(selection) => return end(linux::make(&Workspace::find(), &selection)),
            Err(what) => Err(what),
        },
        ["package", args @ ..] => match package::Selection::parse(args) {
            Ok(selection) => return end(package::make(&Workspace::find(), &selection)),
            Err(what) => Err(what),
        },
        ["book"] => return end(book::make(&Workspace::find())),
        ["test"] => return end(layer::test(&Workspace::find())),
        ["ci"] => Ok(LAYERS.iter().collect()),
        ["ci", "rest"] => Ok(LAYERS.iter().filter(|layer| layer.name != "test").collect()),
        ["ci", names @ ..] => select(names),
        [] => Err("no command given".to_string()),
        [other, ..] => Err(format!("there is no command {other:?}")),
    };
    match chosen {
        Ok(layers) => run(&layers),
        Err(what) => {
            eprintln!("xtask: {what}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The exit code of one command.
fn end(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn select(names: &[&str]) -> Result<Vec<&'static Layer>, String> {
    let known = || LAYERS.iter().map(|l| l.name).collect::<Vec<_>>().join(", ");
    names
        .iter()
        .map(|name| {
            LAYERS
                .iter()
                .find(|l| l.name == *name)
                .ok_or_else(|| format!("there is no layer {name:?}; the layers are {}", known()))
        })
        .collect()
}

fn run(layers: &[&Layer]) -> ExitCode {
    let workspace = Workspace::find();
    let mut lines = Vec::new();
    let mut failed = 0;
    for layer in layers {
        println!("== {}: {}", layer.name, layer.shows);
        let (start, cpu_before) = (Instant::now(), cpu_seconds_of_ended_programs());
        let result = (layer.run)(&workspace);
        let seconds = start.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds_of_ended_programs() - cpu_before;
        let took = format!("{seconds:6.1} s, {cpu_seconds:6.1} of CPU");
        let line = match result {
            Ok(()) => format!("{:8} passed  {took}", layer.name),
            Err(why) => {
                failed += 1;
                format!("{:8} FAILED  {took}  {why}", layer.name)
            }
        };
        println!("== {line}\n");
        lines.push(line);
    }
    println!("Layers:");
    for line in &lines {
        println!("  {line}");
    }
    println!("{} passed, {failed} failed", lines.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the CPU time, in seconds, of all programs that this one started and that have ended:
/// `cutime` and `cstime` of proc_pid_stat(5), in ticks of 10 ms. 0: there is no such file.
fn cpu_seconds_of_ended_programs() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain spaces. The state, field 3, follows.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}
