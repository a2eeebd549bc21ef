//! Lets the control thread sleep until there is work.

use crate::drivers::wait::Waiter;

/// Lets the control thread sleep until there is work.
#[derive(Default)]
pub(super) struct Sleeper {
    pub(super) waiter: Waiter,
    /// The number of the descriptor of its ports among what wakes this thread, where this thread
    /// serves queues.
    pub(super) arrivals: Option<usize>,
}
