//! Which cache lines are prefetched before they are accessed.
//!
//! ```text
//!   frames of at most SHORT bytes   the lines of the whole batch, before its first copy
//!   longer, to be written           the first piece of the frame AHEAD of the copied one, whole
//!   longer, to be read              nothing: the hardware's own prefetcher follows
//!   short, read from more buffers   nothing: lines come from the shared cache
//!   than a private cache holds
//! ```
//! In data rings and in the guest's own pages only the first 1024 bytes are prefetched, for reading
//! or sending: parts of a data ring follow each other, which the hardware's prefetcher detects, and
//! own pages gained nothing from more.
//!
//! Lines that another core had must be fetched exclusively before they are written, and a copy
//! stalls at the start of each buffer. The hardware predicts neither the next buffer nor that it
//! will be written: with a buffer per slot, a bare ring moves 1.5 times as many frames of 1500
//! bytes if all of the next frame but one is prefetched instead of its first 1024 bytes; `bench net
//! --size 1500 --dir rx` has 1.5 to 1.9 times as many as without. A peer chooses the lengths, at
//! most a page; a prefetch accesses no memory and never faults.

/// Length in bytes above which frames are prefetched one by one.
pub const SHORT: usize = 256;

/// Assumed size of a core's private cache: 1 to 2 MiB is usual, and the actual size is not known
/// here.
const PRIVATE_BYTES: usize = 1 << 20;

/// Length in bytes above which frames in staging buffers are prefetched one by one. `buffers` is
/// the number of buffers, which are used in turn. While frames of this length in all buffers
/// together are smaller than a private cache, their lines are still in it. Otherwise they come from
/// the shared cache, for which prefetching a whole batch at once is too much. Ratio of frames with
/// to without this, by `bench net --path staging --size 256`: with 7168 buffers TX 1.37, RX 1.14;
/// with 4096 1.12, 1.08; with 1024 0.98, 1.05; with 256 0.92, 0.99.
#[inline(always)]
pub const fn short_staged(buffers: usize) -> usize {
    match (PRIVATE_BYTES - 1).checked_div(buffers) {
        Some(bytes) if bytes < SHORT => bytes,
        _ => SHORT,
    }
}

/// A long frame is prefetched this many frames before its own copy.
pub const AHEAD: usize = 2;

/// Number of bytes that are prefetched of a fragment in a data ring or in the guest's own pages; by
/// then the hardware's prefetcher has detected the stream.
pub const AHEAD_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::{SHORT, short_staged};

    #[test]
    fn a_batch_is_asked_for_where_a_private_cache_holds_its_frames_in_all_buffers() {
        let asked = |buffers, len| len <= short_staged(buffers);
        assert!([0, 1, 256, 1024, 2048].iter().all(|buffers| asked(*buffers, SHORT)));
        assert!(![4096, 7168, 8192].iter().any(|buffers| asked(*buffers, SHORT)));
        assert!(asked(4096, 128) && asked(7168, 128) && asked(8192, 64));
        assert!(!asked(16384, 128) && !asked(usize::MAX, 1));
        assert!([0, 16, 4096].iter().all(|buffers| !asked(*buffers, SHORT + 1)));
    }
}
