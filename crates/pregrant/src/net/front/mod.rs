//! The front: the guest's driver. Sends frames (TX), posts buffers and receives frames into them
//! (RX).
//!
//! ```text
//!   TX: Burst -> tx.send -> ring          answers -> tx.reclaim
//!       pages of the guest's own -> tx.send_own, tx.send_headed; granted by the caller -> tx.queue_pieces
//!   RX: rx.post -> ring                   answers -> rx.recv -> Arena, or lent until release (rx_pages)
//!                                                 -> hook -> Arena, nothing, tx, or another vif
//! ```
//! The data path ([`tx`], [`rx`]) never meets the control path (`vif`: keys, states, grants of the
//! set-up; [`ctrl`]: the control ring).

mod agreed;
pub mod config;
pub mod ctrl;
pub mod granted_piece;
pub mod halves;
mod handed_on;
pub mod hook;
pub mod link;
mod not_offered;
pub mod own_pages;
pub mod paths;
pub mod plan;
pub mod queue;
pub mod queue_memory;
mod receiver;
pub mod regions;
pub mod requested;
pub mod rx;
pub mod rx_answers;
pub mod rx_hook;
pub mod rx_pages;
mod shared_path;
pub mod slot_memory;
pub(crate) mod stage;
mod staying;
mod taking_up;
pub mod trust;
pub mod tx;
pub mod tx_pieces;
pub mod tx_slots;
pub mod vif;
mod vif_renewal;
mod vif_trust;

pub use config::FrontConfig;
pub use ctrl::CtrlFront;
pub use granted_piece::{GrantedPiece, PIECES_MAX};
pub use halves::{RxHalf, TxHalf};
pub use hook::{Diverted, HookAction, HookFrame, HookStats};
pub use not_offered::NotOffered;
pub use own_pages::cache::{CacheStats, GrefCache};
pub use own_pages::tx::HeadedFrame;
pub use own_pages::working_set::CacheMode;
pub use queue::FrontQueue;
pub use regions::{Granting, Regions};
pub use rx::RxFront;
pub use rx_pages::lent::{self, Lent, UnknownToken};
pub use trust::Trust;
pub use tx::TxFront;
pub use vif::{FrontStep, FrontVif};
