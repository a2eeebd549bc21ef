//! A vif's front, and its back, for a Linux kernel: the crate `pregrant`, with all that a kernel
//! must offer behind C functions.
//!
//! ```text
//!   linux/module (C): xenbus driver, net_device, NAPI, interrupts, heap
//!        |  pregrant_*: front.rs, halves.rs         ^  pk_*: shim.rs
//!        v                                          |
//!   front     FrontVif over --> platform (grants, channels, clock), bus (keys, states), heap, log
//!   back      BackVif over a platform of its own, bus, heap, log: C is in linux/back
//!   selftest  both ends of a vif in this kernel's memory, no Xen: a module of its own
//! ```
//! No kernel symbol is named here but memcpy and its like, and the mitigations' thunks: one object
//! serves several kernels. All modules are linked from this one library, each with what its roots
//! need. No rule of the protocol is in C.
//!
//! What a peer may do: see the crate, where it does so. A panic ends the kernel (`BUG`).
#![no_std]

extern crate alloc;

mod back;
mod bus;
mod channel;
mod front;
mod halves;
mod heap;
mod in_place;
mod log;
mod platform;
mod selftest;
mod shim;
mod used_path;

use core::fmt::Write;
use core::panic::PanicInfo;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = log::Line::default();
    let _ = write!(line, "{info}");
    line.end_all()
}
