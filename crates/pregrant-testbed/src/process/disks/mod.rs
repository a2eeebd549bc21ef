//! The guests of `bench blk`: each with a disk, and a thread that keeps requests in flight on it.
//!
//! ```text
//!   pregrant-lab process guest                                 pregrant-lab process back
//!     domain 10: thread --Load--> vbd 51712 --ring--.            worker 0 ---> RAM disk of domain 10
//!     domain 11: thread --Load--> vbd 51712 --ring--+- loopback  worker 1 ---> RAM disk of domain 11
//!     main thread: commands, asleep meanwhile
//! ```
//! Each guest is a domain of its own. Its thread sends requests, and sleeps when its requests are
//! all in flight and none is answered, as a guest's virtual CPU does; or, where it has a core to
//! itself, polls for answers all the time.
//!
//! [`disks_command`]: the commands to the process. `guests`: the process. `disk_guest`: one guest.
//! [`load`]: the requests of a guest, and the check of their answers. [`vhost_user`]: the same
//! requests to another system's disk, in the calling process.

mod disk_guest;
pub mod disks_command;
pub(super) mod guests;
pub mod load;
#[cfg(all(feature = "vhost-user", target_env = "gnu"))]
pub mod vhost_user;
#[cfg(not(all(feature = "vhost-user", target_env = "gnu")))]
#[path = "no_vhost_user.rs"]
pub mod vhost_user;
