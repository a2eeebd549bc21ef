//! The drivers' code for this platform, compiled in this crate at its `opt-level`;
//! [`pregrant_host::drivers::instances`] says why.

use crate::loopback::Loopback;
use pregrant_host::drivers::instances::{Functions, of_platform};

/// All of it. No one calls this: that it is public makes the compiler keep what it names.
#[inline(never)]
pub fn instances() -> Functions {
    of_platform::<Loopback>()
}
