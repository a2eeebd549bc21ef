//! Plain counters, one set for each direction of a queue, the same at both ends. Written by the queue's own worker only.

use crate::platform::GrantOps;

/// One direction of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirStats {
    /// Frames handed on.
    pub frames: u64,
    /// Octets of these frames.
    pub bytes: u64,
    /// Frames that went through staging buffers alone.
    pub staged: u64,
    /// Frames that needed grant operations.
    pub granted: u64,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    pub errors: u64,
    /// Frames that could not be handed on: the port did not take them, or the guest never can (too long for it).
    pub dropped: u64,
    /// Multicast frames that the guest does not want to hear.
    pub filtered: u64,
    /// At a back, RX: frames that waited too long for the guest's slots.
    pub expired: u64,
    /// Batches of requests or answers published.
    pub batches: u64,
    /// Events sent.
    pub notifications: u64,
    /// At a back: frames that predecessors had in their hands when they ended. Of TX these may have come to the port
    /// twice, of RX they are lost.
    pub interrupted: u64,
    /// At a back: grant operations for this direction's frames.
    pub grant_ops: GrantOps,
}

impl DirStats {
    /// Counts `good` frames that were handed on, `granted` of which needed grant operations.
    #[inline(always)]
    pub(crate) fn handed_on(&mut self, good: u64, granted: u64) {
        self.frames += good;
        self.granted += granted;
        self.staged += good - granted;
    }
}
