//! Code that the tests of several crates and the fuzz targets share. Machines with a broker and
//! processes are in the crate `pregrant-test-machine`.
//!
//! ```text
//!   the core's tests, fuzz targets -----------------------------> pregrant-testkit --> pregrant (feature `local`)
//!   host, loopback, cli, lab, xenstored: tests -----------------> pregrant-testkit
//!   host, loopback, cli: tests --> pregrant-test-machine --> pregrant-loopback, pregrant-host, pregrant-testkit
//! ```
//! There are two crates, and not one with features, because cargo unifies features of what is built
//! together: the core's tests would be built again after each change of the host, and Miri and the
//! fuzz targets would build what they never run.
//!
//! A crate's own unit tests (`cfg(test)` in `src`) cannot use a kit that depends on that very
//! crate: they would see two copies of its types. So `pregrant`'s unit tests use nothing of this,
//! its integration tests do; the unit tests of the other crates may use all of it, but those of
//! `pregrant-xenstored` not `store_model`.
//!
//! - Two domains on a machine in memory: [`two_domains`] (both ends of a queue), [`bus`] (keys in
//!   maps), [`own_grants`] and [`ruled_domain`] (a domain, some of whose calls a test answers).
//! - A peer that a test plays itself: [`model_front`] (a front, which checks the back's answers),
//!   [`raw_back`] (a back, whose words a test writes), [`mutator`] (memory that changes while it is
//!   read), [`shelf`] (a network that keeps frames).
//! - Disks: [`shared_disk`] (handles to one model), [`model_disk`] (a model with a volatile cache).
//! - `store_model` (feature `store-model`): a plain xenstored to compare ours with.
//! - How tests run: [`skip`], [`rounds`], [`counting`] (an allocator that counts),
//!   [`dice`] (random numbers).
#![deny(unsafe_code)]

pub mod bus;
pub mod counting;
pub mod dice;
pub mod model_disk;
pub mod model_front;
pub mod mutator;
pub mod own_grants;
pub mod raw_back;
pub mod rounds;
pub mod ruled_domain;
pub mod shared_disk;
pub mod shelf;
pub mod skip;
#[cfg(feature = "store-model")]
pub mod store_model;
pub mod two_domains;
