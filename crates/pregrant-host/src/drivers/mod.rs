//! The drivers as a Linux process runs them: vifs found in xenstore, and the loop around the data path.
//!
//! ```text
//!   backend::Backend    watches backend/vif, steps each vif, polls all queues round robin
//!   frontend::Frontend  one vif of the own domain
//!   far_side, taps      what stands behind the vifs of a backend: interfaces of this machine, or a switch
//!   pace::Pace          when to look again, and when to sleep: poll, event, adaptive
//!   succession          what outlives this process: locks and redo pages of its vifs
//!   turns               whose turn it is when several vifs want one worker
//!   attention           how much of a worker's time one guest's connecting and closing may take
//!   status, status_socket  what a backend tells others of its vifs, and where
//! ```
//! Control (xenstore) runs between batches, never inside one. Both are generic over the platform.

pub mod attention;
pub mod backend;
pub mod far_side;
pub mod frontend;
pub mod pace;
pub mod status;
pub mod status_socket;
pub mod succession;
pub mod taps;
pub mod turns;

pub use backend::{Backend, BackendError, Chosen, VifReport};
pub use far_side::{FarSide, Hotplug, Place, Plugged};
pub use frontend::{Frontend, FrontendError};
pub use pace::{Mode, Next, Pace};
pub use status::{BackStatus, VifStatus};
pub use status_socket::StatusSocket;
pub use succession::{BrokerSuccession, FileSuccession, Succession};
pub use taps::Taps;
