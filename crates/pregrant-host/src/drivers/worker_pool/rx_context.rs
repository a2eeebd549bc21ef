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
    /// In whose turn frames from guest to guest are delivered.
    RxContext, "an RX context" {
        /// In the sender's turn.
        Same = "same",
        /// In the receiver's turn.
        #[default]
        Worker = "worker",
    }
}
