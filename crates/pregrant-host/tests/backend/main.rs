//! Whole machines in one process: broker, xenstored, a backend in a thread, guests that are good
//! and guests that are not (`machine`).
//!
//! ```text
//!   backend [NAME ...]    tests whose `file::name` has one of these in it, one after the other
//! ```
//! One program, for the machine is built once; each test counts what the whole process holds.

mod bad_guests;
mod control_ring;
mod full_file_system;
mod hostile_back;
mod misbehaviour;
mod rx_context;
mod shares;
mod successor;
mod vif_life;
mod vif_time;
mod workers;
mod xsa_machine;

use pregrant_test_machine::machine;
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, broker] = args.as_slice()
        && child == "child"
    {
        return bad_guests::play_until_killed(Path::new(broker));
    }
    if let [full, dir] = args.as_slice()
        && full == "full"
    {
        return full_file_system::on_a_full_file_system(Path::new(dir));
    }
    machine::run(&[
        ("bad_guests", bad_guests::TESTS),
        ("control_ring", control_ring::TESTS),
        ("full_file_system", full_file_system::TESTS),
        ("hostile_back", hostile_back::TESTS),
        ("misbehaviour", misbehaviour::TESTS),
        ("rx_context", rx_context::TESTS),
        ("shares", shares::TESTS),
        ("successor", successor::TESTS),
        ("vif_life", vif_life::TESTS),
        ("vif_time", vif_time::TESTS),
        ("workers", workers::TESTS),
        ("xsa_machine", xsa_machine::TESTS),
    ]);
}
