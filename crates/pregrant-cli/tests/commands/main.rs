//! Both programs as a user runs them, a file for each of its smaller commands.

mod a_guest_in_c;
mod command_line;
mod first_front;
mod front_hook;
mod hotplug;
mod inherited_signals;
mod killed_backend;
mod pages;
mod store_keys;

use pregrant_test_machine::programs::command;
use std::process::Output;

const PREGRANT: &str = env!("CARGO_BIN_EXE_pregrant");

/// A command of the program that has it.
fn pregrant(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
