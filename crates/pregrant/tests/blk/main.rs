//! A disk, both ends, on a machine within the test: a file for each claim.
#![cfg(not(loom))]
#![cfg_attr(miri, allow(dead_code))] // Miri has a few of the files

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
mod raw_front;
mod rules;
mod same_image;
mod world;
mod xsa_disk;
