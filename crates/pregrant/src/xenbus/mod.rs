//! xenbus: how the two ends of a device connect through xenstore.
//!
//! ```text
//!  toolstack       /local/domain/7/device/vif/0        /local/domain/0/backend/vif/7/0
//!                     backend, state=1, mac ...           frontend, online, state=1 ...
//!  back                                                   features, state=2 (InitWait)
//!  front              rings, channels, state=4            │
//!  back                                                   state=4 (Connected)
//! ```
//! Each end writes its own directory and watches the other's `state`. [`state`] defines the states
//! and how each end reacts to the other's; [`device`] has one end's directories, with keys that are
//! parsed as hostile ([`key_source`]); [`bus`] is the interface to both for a driver of any class;
//! [`back`] is the back's end of a device of any class, and [`front`] the state of a front's;
//! [`toolstack`] creates and removes both directories.
//!
//! The keys of a class are defined elsewhere: `net::features` for vifs and `blk::features` for
//! disks. Only those of [rings and queues](ring_keys), which are common to all classes, are here.

pub mod back;
pub mod backoff;
pub mod bus;
pub mod connect_error;
pub mod device;
pub mod front;
pub mod key;
pub mod key_name;
pub mod key_source;
pub mod ring_keys;
pub mod state;
pub mod toolstack;

pub use back::{Back, BackDevice, ClassRules};
pub use bus::{DeviceBus, OwnKeys, StoreBus};
pub use device::{Class, Device, DeviceId, Side};
pub use key::{DeviceError, KeyError, KeyValue};
pub use key_name::KeyName;
pub use state::XenbusState;
