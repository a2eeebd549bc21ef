//! The images behind guests' disks: RAM, a raw file, a block device.
//!
//! ```text
//!   params, mode --spec--> NamedImage --open--> ram:   memory of this process
//!                                          '--> file:  one open file: lock, length, discards, direct or cached; calls that may hang have a thread
//!                                                 | a way for each queue
//!                                                 |-- uring:  io_uring; no thread for each request
//!                                                 |-- pool:   threads, where that is not to be had or not wanted
//!                                                 '-- in_place: the worker itself, where the file is in memory
//!                                               transfer: one Io as the kernel takes it, piece by piece
//! ```
//! Invariants: all reads and writes of an image go through one open file, which carries its `lock`.
//! The kernel releases that lock only when the last request on the open file has ended, even if its
//! process is dead. So the owner of the lock knows that no other process's write can still reach
//! the image. A `Transfer` owns the memory of a request until the request has ended.
//!
//! What a guest may do: change the mapped bytes while they are written (its disk gets either
//! version), or request what the disk cannot do, which fails. Only the toolstack decides which
//! image is opened.

mod blocking_calls;
mod device;
mod direct;
mod file;
mod format;
mod identity;
mod image;
mod in_place;
mod lock;
mod open_file;
mod pool;
mod ram;
mod spec;
mod transfer;
mod uring;
mod users;
mod wake_fd;
mod writeback;

pub use file::FileImage;
pub use image::{ImageFace, NamedImage};
pub use ram::RamImage;
pub use spec::{ImageSpec, UnknownImage};

use crate::choice::named;
use std::time::Duration;

named! {
    /// The method of transfers to and from a file.
    IoWay, "a way" {
        /// io_uring is used, or threads if the kernel does not have it.
        #[default]
        Uring = "uring",
        /// Each image has a pool of threads.
        Threads = "threads",
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// The method of transfers to and from a file.
    pub io: IoWay,
    /// True to use direct I/O, if the file allows it.
    pub direct: bool,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self { io: IoWay::default(), direct: true }
    }
}

/// Number of threads of an image that does all transfers by threads.
const THREADS: usize = 4;
/// The time that an orderly shutdown waits for a disk that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
