//! A disk, both ends, on a machine within the test: a file for each claim.
#![cfg(not(loom))]
#![cfg_attr(miri, allow(dead_code))] // Miri has a few of the files

#[path = "../rig/bus.rs"]
#[allow(dead_code)] // vifs connect there too
mod bus;
mod model_disk;
#[path = "../rig/mutator.rs"]
mod mutator;
mod raw_front;
mod rig;
#[path = "../rounds/mod.rs"]
mod rounds;

mod closing;
mod flush_fault;
mod front_keys;
mod front_pages;
mod hostile_back;
mod kept_pages;
mod life;
mod model;
mod own_pages;
mod race;
mod rules;
mod same_image;
mod xsa_disk;
