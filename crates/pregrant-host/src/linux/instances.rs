//! The drivers' code for this platform, compiled in this crate at its `opt-level`;
//! [`crate::drivers::instances`] says why. It is more than half of the time that this crate takes,
//! so that a program for the loopback alone is built without the feature `xen`, and without this.

use super::Xen;
use crate::drivers::instances::{Functions, of_platform};

/// Names all functions of the drivers. No code calls this function; because it is public, the
/// compiler keeps the code that it names.
#[inline(never)]
pub fn instances() -> Functions {
    of_platform::<Xen>()
}
