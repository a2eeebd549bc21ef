//! In whose time frames of one guest go into another guest's ring, where both queues are at one
//! worker.
//!
//! | context | frames for a guest | as |
//! |---|---|---|
//! | `worker` | wait in its queue for its turn | netback's RX thread |
//! | `same` | go into its ring behind the batch that brought them, in the sender's turn | netback's transmit since 2015's patches |
//!
//! A queue of another worker has its turn there in either case: its ring has one owner.

use crate::choice::named;

named! {
    /// The turn in which frames from one guest to another are delivered.
    RxContext, "an RX context" {
        /// Frames are delivered in the turn of the queue that sends them.
        Same = "same",
        /// Frames are delivered in the turn of the queue that receives them.
        #[default]
        Worker = "worker",
    }
}
