//! Lets the control thread sleep until there is work.

use crate::drivers::wait::Waiter;

/// Lets the control thread sleep until there is work.
#[derive(Default)]
pub(super) struct Sleeper {
    pub(super) waiter: Waiter,
    /// The index of the descriptor of the queues' ports among those that wake this thread, if this
    /// thread serves queues.
    pub(super) arrivals: Option<usize>,
}
