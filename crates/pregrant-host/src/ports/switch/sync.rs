//! The atomic primitives of the mailbox. Loom replaces this file.

pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub use std::sync::{Arc, Mutex, MutexGuard};
