//! Plain per-queue counters, one struct for each direction. Written by the queue's own worker only.

/// TX of one queue (guest to back), at either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxStats {
    /// Frames handed on.
    pub frames: u64,
    /// Octets of these frames.
    pub bytes: u64,
    /// Frames that went through staging buffers alone.
    pub staged: u64,
    /// Frames that needed grant operations.
    pub granted: u64,
    /// Frames answered with ERROR (bad lengths, failed grant operations, unknown ids).
    pub errors: u64,
    /// Frames that the port did not take.
    pub dropped: u64,
    /// Batches of answers or requests published.
    pub batches: u64,
    /// Events sent.
    pub notifications: u64,
}

/// RX of one queue (back to guest), at either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxStats {
    /// Frames handed on.
    pub frames: u64,
    /// Octets of these frames.
    pub bytes: u64,
    /// Frames that went through staging buffers alone.
    pub staged: u64,
    /// Frames that needed grant operations.
    pub granted: u64,
    /// Frames lost to failed grant operations or answered with an error.
    pub errors: u64,
    /// Frames that the guest cannot take (too long without scatter-gather).
    pub dropped: u64,
    /// Batches published.
    pub batches: u64,
    /// Events sent.
    pub notifications: u64,
}
