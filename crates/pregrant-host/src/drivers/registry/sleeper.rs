//! How the control thread sleeps.

use crate::drivers::wait::Waiter;

/// How the control thread sleeps.
#[derive(Default)]
pub(super) struct Sleeper {
    pub(super) waiter: Waiter,
    /// The number of the descriptor of its ports among what wakes this thread, where this thread
    /// serves queues.
    pub(super) arrivals: Option<usize>,
}
