//! The images behind guests' disks: RAM, a raw file, a block device.
//!
//! ```text
//!   params, mode --spec--> NamedImage --open--> ram:   memory of this process
//!                                          '--> file:  one open file: lock, length, discards, direct or cached; what may hang: its thread's
//!                                                 | a way for each queue
//!                                                 |-- uring:  io_uring; no thread for each request
//!                                                 |-- pool:   threads, where that is not to be had or not wanted
//!                                                 '-- in_place: the worker itself, where the file is in memory
//!                                               transfer: one Io as the kernel takes it, piece by piece
//! ```
//! Invariants: all reads and writes of an image go through one open file, which carries its `lock`;
//! the kernel drops that lock when the last request on the open file has ended, be its process dead
//! or alive. So who has the lock knows that no one else's write lands any more. Memory that the
//! kernel knows of is owned by a `Transfer` until the request is over.
//!
//! What a guest may do: change mapped bytes while they are written (either lands on its disk), ask
//! for what the disk cannot do: it gets an error. Which image is opened is the toolstack's word
//! alone.

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
    /// How transfers reach a file.
    IoWay, "a way" {
        /// io_uring; where the kernel has none, threads.
        #[default]
        Uring = "uring",
        /// A pool of threads for each image.
        Threads = "threads",
    }
}

/// How images are opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// How transfers reach a file.
    pub io: IoWay,
    /// Whether the kernel's page cache is passed by, where the file allows it.
    pub direct: bool,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self { io: IoWay::default(), direct: true }
    }
}

/// Threads of an image that has all of its transfers done by threads.
const THREADS: usize = 4;
/// How long an end in good order waits for a disk that does nothing.
const PATIENCE: Duration = Duration::from_secs(5);
