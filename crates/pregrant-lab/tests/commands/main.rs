//! `pregrant-lab` as a user runs it, a file for each of its smaller commands.

mod bench_blk;
mod bench_limit;
mod bench_loaded;
mod bench_own;
mod bench_peers;
mod bench_store;
mod command_line;
mod frames;
mod report;
mod store_tools;

use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_pregrant-lab");

fn lab(args: &[&str]) -> Output {
    Command::new(LAB).args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
