//! The drivers' code for this platform, compiled in this crate at its `opt-level`;
//! [`pregrant_host::drivers::instances`] says why.

use crate::loopback::Loopback;
use pregrant_host::drivers::instances::{Functions, of_platform};

/// Names all functions of the drivers. No code calls this function; because it is public, the
/// compiler keeps the code that it names.
#[inline(never)]
pub fn instances() -> Functions {
    of_platform::<Loopback>()
}
