//! `pregrant` as a user runs it, a file for each of its smaller commands.

mod a_guest_in_c;
mod bench_blk;
mod bench_limit;
mod bench_loaded;
mod bench_own;
mod bench_peers;
mod bench_store;
mod command_line;
mod first_front;
mod frames;
mod front_hook;
mod hotplug;
mod inherited_signals;
mod killed_backend;
mod pages;
mod report;
#[path = "../served/mod.rs"]
mod served;
#[path = "../../../pregrant/tests/skip/mod.rs"]
mod skip;
mod store_keys;
mod store_tools;

use std::process::{Command, Output};

const PREGRANT: &str = env!("CARGO_BIN_EXE_pregrant");

fn pregrant(args: &[&str]) -> Output {
    Command::new(PREGRANT).args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
