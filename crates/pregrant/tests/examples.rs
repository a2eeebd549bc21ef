//! Runs the examples, each of which returns an error if it does not work. They are built here, and
//! not also as programs: these need the feature `examples`, and `clippy` checks them.
#![cfg(not(any(loom, miri)))]
#![allow(clippy::duplicate_mod)] // each is a program of its own, and brings what it stands on

#[path = "../examples/burst_front.rs"]
mod burst_front;
#[path = "../examples/drop.rs"]
mod drop_example;
#[path = "../examples/first_ring.rs"]
mod first_ring;
#[path = "../examples/router.rs"]
mod router;
#[path = "../examples/smoltcp_front.rs"]
mod smoltcp_front;
#[path = "../examples/two_paths.rs"]
mod two_paths;

#[test]
fn a_ring_and_two_interfaces() {
    first_ring::main().expect("first_ring");
    two_paths::main().expect("two_paths");
}

#[test]
fn a_hook_that_drops() {
    drop_example::main().expect("drop");
}

#[test]
fn a_router_between_two_vifs() {
    router::main().expect("router");
}

#[test]
fn a_front_that_polls() {
    burst_front::main().expect("burst_front");
}

#[test]
fn a_tcp_stack_over_a_front() {
    smoltcp_front::main().expect("smoltcp_front");
}
