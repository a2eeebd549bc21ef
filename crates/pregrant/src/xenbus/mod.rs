//! xenbus: how the two ends of a device meet, over xenstore.
//!
//! ```text
//!  toolstack       /local/domain/7/device/vif/0        /local/domain/0/backend/vif/7/0
//!                     backend, state=1, mac ...           frontend, online, state=1 ...
//!  back                                                   features, state=2 (InitWait)
//!  front              rings, channels, state=4            │
//!  back                                                   state=4 (Connected)
//! ```
//! Each end writes its own directory and watches the other's `state`. [`state`] has the states and
//! what each end does about the other's; [`device`] one end's directories, with keys that are
//! parsed as hostile ([`key_source`]); [`bus`] what a driver of any class sees of both; [`back`]
//! the back's end of a device of any class, and [`front`] where its front's stands; [`toolstack`]
//! the part that makes and removes both directories.
//!
//! Which keys a device has is not here, but for those of [rings and queues](ring_keys), which all
//! classes write alike: see `net::features` for vifs, `blk::features` for disks.

pub mod back;
pub mod backoff;
pub mod bus;
pub mod connect_error;
pub mod device;
pub mod front;
pub mod key;
pub mod key_source;
pub mod ring_keys;
pub mod state;
pub mod toolstack;

pub use back::{Back, BackDevice, ClassRules};
pub use bus::{DeviceBus, OwnKeys, StoreBus};
pub use device::{Class, Device, DeviceId, Side};
pub use key::{DeviceError, KeyError, KeyValue};
pub use state::XenbusState;
