//! The drivers as a Linux process runs them: devices found in xenstore, and the loop around the
//! data path.
//!
//! ```text
//!   registry         watches the backend's directory, steps each device, hands their queues to workers
//!   device_class/    the traits of a class of devices    device_log  the log lines of one device, bounded
//!   net/             what only vifs have: ports, scripts, and the front
//!   blk/             what only vbds have: their images (disks/), and the front, as threads use it
//!   front_device     what the fronts of vifs and vbds share: their ends in xenstore
//!   worker_queues    the queues that one worker serves: those that are active are polled, the others armed
//!   worker_pool/     the workers' threads, who has which queue, commands between them and the control thread
//!   poll_loop        the one loop: rounds, control when it is due, sleep
//!   poll_controller  when to check again, and when to sleep: poll, event, adaptive
//!   wait             how a loop sleeps, and what becomes of a wake-up that is lost
//!   recovery         what outlives this process: locks and redo pages
//!   fair_scheduler   whose turn it is when several devices want one worker
//!   throttle         how much of a worker's time one guest's connecting and closing may take
//!   status, status_socket    what a backend tells others of its devices, and where
//!   instances        which of these functions are compiled in this crate, and not in each program
//! ```
//! Control (xenstore) runs between batches, never inside one. Control and data path are generic
//! over the platform.

pub mod blk;
mod device_choice;
pub mod device_class;
pub mod device_log;
pub mod fair_scheduler;
mod front_device;
pub mod instances;
pub mod net;
pub mod overdue;
pub mod poll_controller;
pub mod poll_loop;
pub mod recovery;
pub mod registry;
pub mod status;
pub mod status_publisher;
pub mod status_socket;
pub mod throttle;
pub mod wait;
pub mod worker_pool;
pub mod worker_queues;

pub use blk::front::frontend::BlkFrontend;
pub use blk::front::shared_disk::SharedDisk;
pub use blk::{Blk, BlkConfig};
pub use device_choice::DeviceChoice;
pub use device_class::{DeviceClass, RemoteSide, ServedDevice};
pub use front_device::FrontendError;
pub use net::capture::{CaptureFile, Captured};
pub use net::frontend::{Defaults, Frontend};
pub use net::port_provider::{Hotplug, HotplugConfig, Plugged, PortProvider};
pub use net::rx_coalescing::RxCoalescing;
pub use net::stations::Stations;
pub use net::taps::Taps;
pub use net::{Net, NetConfig, VifReport};
pub use poll_controller::Mode;
pub use poll_loop::{PollLoop, Rest, Work};
pub use recovery::{FileRecovery, Recovery};
pub use registry::{Backend, BackendConfig, BackendError, DeviceReport, WorkerConfig};
pub use status::{BackStatus, VifStatus};
pub use status_publisher::StatusPublisher;
pub use status_socket::StatusSocket;
pub use worker_pool::placement::Placement;
pub use worker_pool::rx_context::RxContext;
