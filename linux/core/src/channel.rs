//! An end of an event channel, of a front or a back, behind C functions.

use crate::shim;
use core::ffi::c_void;
use core::ptr::NonNull;
use pregrant::EvtchnPort;

/// One end of an event channel. After an interrupt the next one comes only once the channel is
/// unmasked.
pub struct Channel {
    at: NonNull<c_void>,
    port: EvtchnPort,
}
// SAFETY: C's functions take a channel from any thread.
unsafe impl Send for Channel {}
// SAFETY: several may notify at a time. To unmask changes what C counts, without a lock: each
// channel has one that does it, a queue's half (`TxHalf` and `RxHalf::final_check`: TX's only where
// it has a channel of its own), a back's queue (`BackQueue::arm`), or control.
unsafe impl Sync for Channel {}
impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the one owner's last word. It sleeps: in process context.
        unsafe { shim::pk_channel_close(self.at.as_ptr()) }
    }
}

impl Channel {
    /// The channel that C made at `at`, which is `port` here.
    pub fn of(at: NonNull<c_void>, port: EvtchnPort) -> Self {
        Self { at, port }
    }

    /// The local number.
    pub fn port(&self) -> EvtchnPort {
        self.port
    }

    /// Sends an event to the peer.
    #[inline(always)]
    pub fn notify(&self) {
        // SAFETY: a channel that lives.
        unsafe { shim::pk_channel_notify(self.at.as_ptr()) }
    }

    /// Allows the next event. `idle`: the last one brought no work.
    #[inline(always)]
    pub fn unmask(&self, idle: bool) {
        // SAFETY: as above.
        unsafe { shim::pk_channel_unmask(self.at.as_ptr(), idle) }
    }
}
