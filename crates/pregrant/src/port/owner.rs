//! The worker that calls a port, and how the port wakes it.
//!
//! ```text
//!   frames for the guest --> port --QueueWaker::ring--> worker --rx_burst--> port
//! ```

use alloc::sync::Arc;
use core::fmt;

/// Wakes a worker.
pub trait QueueWaker: Send + Sync + fmt::Debug {
    /// Wakes the worker for the port of this waker. Several calls may count as one. It may be
    /// called on any thread, also while another port holds its own lock, since it calls no port.
    fn ring(&self);
}

/// The worker that calls a port.
#[derive(Clone, Debug)]
pub struct PortOwner {
    /// The worker's number. All frames that its ports send to others count as this one producer's.
    pub worker: usize,
    /// Makes the worker poll this port.
    pub waker: Arc<dyn QueueWaker>,
}
