//! The rings alone, against models, deaths and another thread. Miri runs the tests that are not
//! marked as too long for it; loom has programs of its own.
#![cfg(not(loom))]

mod ring_by_id;
mod ring_model;
mod ring_redo;
mod ring_threads;
