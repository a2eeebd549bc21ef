//! Plain counters, one set for each direction of a queue, the same at both ends. Written by the queue's own worker only.

use crate::platform::GrantOps;

/// Which counter of [`DirStats`] a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// It took grant operations.
    Granted,
    /// Its pages were mapped before.
    Persistent,
    /// It went through buffers that were mapped at connect.
    Staged,
}

/// One direction of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirStats {
    /// Frames handed on.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames that went through staging buffers alone.
    pub staged: u64,
    /// Frames that needed grant operations.
    pub granted: u64,
    /// At a back: frames whose pages were mapped when an earlier frame came in them.
    pub persistent: u64,
    /// Frames answered with an error: bad lengths, failed grant operations, unknown ids.
    pub errors: u64,
    /// Frames that could not be handed on: the port did not take them, the guest never can (too long for it), or they
    /// are large segments of no TCP packet.
    pub dropped: u64,
    /// Large segments from the peer whose checksum was not blank, and was made so (Linux: `rx_gso_checksum_fixup`).
    pub gso_checksum_fixups: u64,
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
    /// Counts the frames of a batch that were handed on, a bit for each: among them those that needed grant operations, and
    /// those whose pages stayed mapped.
    #[inline(always)]
    pub(crate) fn handed_on(&mut self, good: u64, granted: u64, persistent: u64) {
        let [good, granted, persistent] =
            [good, good & granted, good & persistent].map(|frames| u64::from(frames.count_ones()));
        self.frames += good;
        self.granted += granted;
        self.persistent += persistent;
        self.staged += good - granted - persistent;
    }

    /// Counts frames that all went one way.
    #[inline(always)]
    pub(crate) fn handed_on_by(&mut self, by: Counted, frames: u64) {
        self.frames += frames;
        match by {
            Counted::Granted => self.granted += frames,
            Counted::Persistent => self.persistent += frames,
            Counted::Staged => self.staged += frames,
        }
    }
}
