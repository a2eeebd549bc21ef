//! The daemons and tools of the program `pregrant`, as a library: its own `main` dispatches to
//! them, and so does that of the laboratory, `pregrant-lab`, which has some of the commands, too.
//!
//! ```text
//!   back, blkback      daemons of a driver domain         (daemon: what both share)
//!   front, blkfront    a guest's ends
//!   doctor, top, store, hotplug                           tools
//!   program            exit codes, log, signals: what every command begins and ends with
//!   loopback_machine, loopback_guest                      --loopback DIR: the client's end of a machine
//! ```
//! Nothing here serves a loopback machine, measures, or has a TCP/IP stack of its own: that is the
//! laboratory's, which links this without the feature `program`: without the commands, and the
//! crates, that it has no use for. `cargo xtask ci tidy` reads what this depends on. Without the
//! feature `xen` the commands run on the loopback alone, and refuse to run on a real Xen.
#![forbid(unsafe_code)]

pub mod amount;
pub mod back;
#[cfg(feature = "program")]
pub mod blkback;
#[cfg(feature = "program")]
pub mod blkfront;
pub mod choice;
pub mod daemon;
#[cfg(feature = "program")]
pub mod doctor;
pub mod experiment;
pub mod front;
#[cfg(feature = "program")]
pub mod hotplug;
#[cfg(feature = "xen")]
mod kernel_driver;
pub mod lab_command;
pub mod log_line;
mod loopback_guest;
pub mod loopback_machine;
#[cfg(feature = "program")]
mod module_status;
mod notify;
mod path_choice;
pub mod program;
pub mod screen;
pub mod signals;
pub mod status_reader;
pub mod stop;
#[cfg(feature = "program")]
pub mod store;
pub mod table;
#[cfg(feature = "program")]
pub mod top;
pub mod usage;
