//! The drivers as a Linux process runs them: vifs found in xenstore, and the loop around the data path.
//!
//! ```text
//!   backend          watches backend/vif, steps each vif, polls all queues round robin
//!   frontend         one vif of the own domain
//!   port_provider    what stands behind the vifs of a backend: taps, interfaces of this machine; or stations, a switch
//!   captured         the same, and some vifs' frames in a file
//!   hotplug          the scripts of vifs, run here or by a service that may do more than this process
//!   poll_controller  when to look again, and when to sleep: poll, event, adaptive
//!   wait             how a loop sleeps, and what becomes of a wake-up that is lost
//!   recovery         what outlives this process: locks and redo pages of its vifs
//!   fair_scheduler   whose turn it is when several vifs want one worker
//!   throttle         how much of a worker's time one guest's connecting and closing may take
//!   status, status_socket    what a backend tells others of its vifs, and where
//! ```
//! Control (xenstore) runs between batches, never inside one. Both are generic over the platform.

pub mod backend;
pub mod captured;
pub mod fair_scheduler;
pub mod frontend;
pub mod hotplug;
pub mod poll_controller;
pub mod port_provider;
pub mod recovery;
pub mod stations;
pub mod status;
pub mod status_socket;
pub mod status_teller;
pub mod taps;
pub mod throttle;
pub mod wait;

pub use backend::{Backend, BackendError, Chosen, VifReport};
pub use captured::{CaptureFile, Captured};
pub use frontend::{Frontend, FrontendError};
pub use poll_controller::{Mode, Next, PollController};
pub use port_provider::{Hotplug, HotplugConfig, Plugged, PortProvider};
pub use recovery::{BrokerRecovery, FileRecovery, Recovery};
pub use stations::Stations;
pub use status::{BackStatus, VifStatus};
pub use status_socket::StatusSocket;
pub use status_teller::StatusTeller;
pub use taps::Taps;
