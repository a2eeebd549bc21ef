//! A disk, both ends, on a machine within the test: a file for each claim.
#![cfg(not(loom))]

#[path = "../rig/bus.rs"]
#[allow(dead_code)] // vifs connect there too
mod bus;
mod model_disk;
mod raw_front;
mod rig;

mod hostile_back;
mod kept_pages;
mod life;
mod model;
mod rules;
mod xsa_disk;
