//! The back: takes the frames that the guest sends (TX), and delivers those for it (RX), both named
//! from the guest's view.
//!
//! ```text
//!            TX: tx -> batch::tx   -> path.fetch   -> port.tx_burst
//!            RX: port.rx_burst  -> path.deliver -> rx
//! ```
//! The data path ([`tx`], [`rx`]) is separate from the control path (`vif`: keys, states, mappings;
//! [`control_ring`]). Each file says what a guest may do to it; nothing of that reaches another
//! guest's queue.

pub mod control_page;
pub mod control_ring;
pub mod control_state;
pub mod credit;
pub mod guest_settings;
pub mod hash;
mod late_answers;
pub mod multicast;
pub mod queue;
pub mod rx;
pub mod shared_control;
pub mod stall;
pub mod tx;
pub mod unfinished_work;
pub mod vif;

pub use crate::xenbus::back::{BackStep, Drained, PreviousState};
pub use control_page::ControlPage;
pub use control_state::Control;
pub use credit::{Credit, Rate};
pub use queue::BackQueue;
pub use rx::RxQueue;
pub use shared_control::SharedControl;
pub use stall::{Link, Patience};
pub use tx::TxQueue;
pub use unfinished_work::Interrupted;
pub use vif::{BackVif, Vif, VifConfig};

/// The result of polling a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// A batch was moved, and there may be more.
    More,
    /// There was nothing to move: ask for events, and check once more before sleeping.
    Idle,
}
