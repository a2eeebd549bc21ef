//! The front: the guest's driver. Sends frames (TX), posts buffers and receives frames into them (RX).
//!
//! ```text
//!   TX: Burst -> tx.send -> ring          answers -> tx.reclaim
//!   RX: rx.post -> ring                   answers -> rx.recv -> Arena
//! ```
//! The data path ([`tx`], [`rx`]) never meets the control path (`vif`: keys, states, grants of the set-up; [`ctrl`]: the control ring).

pub mod buffers;
pub mod carried;
pub mod ctrl;
pub mod pages;
pub mod plan;
pub mod rx;
pub mod staging;
pub mod tx;
pub mod vif;

pub use buffers::Buffers;
pub use ctrl::CtrlFront;
pub use rx::RxFront;
pub use tx::TxFront;
pub use vif::{FrontStep, FrontVif, Wishes};
