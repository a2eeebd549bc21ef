//! Loopback machines for tests of the host, the loopback and the command line. What needs no broker
//! and no processes is in `pregrant-testkit`, which says why these are two crates.
//!
//! ```text
//!   machine     broker, xenstored, back and guests: threads of the test's process
//!   processes   broker, xenstored and guests in the test's process; backs are children, which may be killed
//!   served      all of it in processes: `pregrant-lab loopback serve`, and `pregrant` on its machine
//! ```
//! - On a [`machine`]: [`guest`] (a good one), [`raw_guest`] (one that writes its rings itself),
//!   [`stage`] (two good guests beside a bad one), [`obstructed`] (files that others hold).
//! - For [`served`]: [`programs`], where cargo put the two programs.
//! - How tests run: [`one_by_one`] (programs without libtest), [`log_lines`], [`netns`] (a network
//!   namespace of a test's own).
//!
//! The integration tests of `pregrant-host` and `pregrant-loopback` use this crate; their unit
//! tests cannot, because they would see two copies of their own types.
#![deny(unsafe_code)]

pub mod guest;
pub mod log_lines;
pub mod machine;
pub mod netns;
pub mod obstructed;
pub mod one_by_one;
pub mod processes;
pub mod programs;
pub mod raw_guest;
pub mod served;
pub mod stage;
