//! A disk, both ends, on a machine within the test: a file for each claim.
#![cfg(not(loom))]

#[path = "../rig/bus.rs"]
#[allow(dead_code)] // vifs connect there too
mod bus;
#[allow(dead_code)] // the tests of restarts use the rest
mod model_disk;
#[allow(dead_code)] // the same
mod rig;

mod life;
