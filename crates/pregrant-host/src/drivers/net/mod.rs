//! What only vifs have: what stands behind them, and the front of one.
//!
//! ```text
//!   port_provider    what stands behind the vifs of a backend: taps, interfaces of this machine; or stations, a switch
//!   captured         the same, and some vifs' frames in a file
//!   hotplug          the scripts of vifs, run here or by a service that may do more than this process
//!   frontend         one vif of the own domain
//! ```

pub mod captured;
pub mod frontend;
pub mod hotplug;
pub mod port_provider;
pub mod stations;
pub mod taps;
