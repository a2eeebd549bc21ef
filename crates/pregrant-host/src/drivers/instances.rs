//! The functions that are compiled in the crate of a platform: in this one for a real Xen
//! (`linux/instances.rs`), and in `pregrant-loopback` for the loopback.
//!
//! ```text
//!   pregrant, drivers: generic over the platform --+
//!   this list: which functions, for one platform --+--> machine code of that platform's crate, at its opt-level
//!                                                         ^
//!   pregrant-cli, pregrant-lab: call these functions -----' and are compiled at a lower one
//! ```
//! Rust compiles a generic function in the crate that chooses its types, at that crate's
//! `opt-level`, and again in each further crate that chooses the same. The programs are large and
//! execute most of their code once, so `Cargo.toml` gives them a low `opt-level`, which halves the
//! time of the first build. What a backend or a frontend does all the time must not be compiled
//! with them.
//!
//! The compiler calls the copy of an earlier crate if the function is `#[inline(never)]` and that
//! crate has such a copy. So each function of this list has that attribute, and whatever it calls
//! is inlined into it here. The cost is one call that is not inlined, for a batch of frames and not
//! for each. A function that is not in this list works as well; it is compiled in each program.

use super::device_class::{DeviceClass, Takeover};
use super::registry::Backend;
use super::{Blk, BlkFrontend, Frontend, Net};
use crate::unix_transport::UnixTransport;
use crate::wake::WakeOn;
use pregrant::platform::Platform;

pub type Functions = Vec<*const ()>;

/// Returns the functions for one platform, compiled in the crate that calls this.
pub fn of_platform<P: Platform>() -> Functions
where
    P::Events: WakeOn,
{
    [backend::<P>(), front::<P>(), disk_front::<P>()].concat()
}

/// Returns the functions that serve devices. The code of a class's devices and queues is compiled
/// because `make` uses it; the loop of a worker thread, because `start_workers` does.
fn backend<P: Platform>() -> Functions
where
    P::Events: WakeOn,
{
    vec![
        Backend::<P, UnixTransport>::new as *const (),
        Backend::<P, UnixTransport>::start_workers as *const (),
        Backend::<P, UnixTransport>::control as *const (),
        Backend::<P, UnixTransport>::round as *const (),
        Backend::<P, UnixTransport>::arm as *const (),
        Backend::<P, UnixTransport>::sleep as *const (),
        Backend::<P, UnixTransport>::detach as *const (),
        Backend::<P, UnixTransport>::close_all as *const (),
        <Net<P> as Takeover<UnixTransport>>::reserve as *const (),
        <Net<P> as DeviceClass<P, UnixTransport>>::make as *const (),
        <Blk<P> as DeviceClass<P, UnixTransport>>::make as *const (),
    ]
}

/// Returns the functions of a guest's vif.
fn front<P: Platform>() -> Functions
where
    P::Events: WakeOn,
{
    vec![
        Frontend::<P, UnixTransport>::new as *const (),
        Frontend::<P, UnixTransport>::control as *const (),
        Frontend::<P, UnixTransport>::connect as *const (),
        Frontend::<P, UnixTransport>::close as *const (),
        Frontend::<P, UnixTransport>::send as *const (),
        Frontend::<P, UnixTransport>::reclaim as *const (),
        Frontend::<P, UnixTransport>::recv as *const (),
        Frontend::<P, UnixTransport>::recv_by_reference as *const (),
        Frontend::<P, UnixTransport>::hand_on as *const (),
        Frontend::<P, UnixTransport>::sleep as *const (),
        Frontend::<P, UnixTransport>::log_state as *const (),
    ]
}

/// Returns the functions of a guest's disk.
fn disk_front<P: Platform>() -> Functions
where
    P::Events: WakeOn,
{
    vec![
        BlkFrontend::<P, UnixTransport>::new as *const (),
        BlkFrontend::<P, UnixTransport>::round as *const (),
        BlkFrontend::<P, UnixTransport>::control as *const (),
        BlkFrontend::<P, UnixTransport>::connect as *const (),
        BlkFrontend::<P, UnixTransport>::finish as *const (),
        BlkFrontend::<P, UnixTransport>::close as *const (),
    ]
}
