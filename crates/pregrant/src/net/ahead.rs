//! Which cache lines are asked for before they are touched.
//!
//! ```text
//!   frames of at most SHORT bytes   the lines of the whole batch, before its first copy
//!   longer, to be written           the first piece of the frame AHEAD of the copied one, whole
//!   longer, to be read              nothing: the hardware's own prefetcher follows
//!   short, read from more buffers   nothing: lines come from the shared cache
//!   than a private cache holds
//! ```
//! Of a data ring and of own pages 1024 bytes are asked for where they are read, or sent: places of
//! a data ring follow each other, which the hardware sees, and own pages gained nothing by more.
//!
//! Lines that another core had must come exclusive before they are written, and a copy stops where
//! each begins. The hardware sees neither the next buffer nor that it will be written: with a
//! buffer for each slot a bare ring moves 1.5 times as many frames of 1500 bytes when the whole of
//! the next frame but one is asked for, not its first 1024 bytes; `bench net --size 1500 --dir rx`
//! has 1.5 to 1.9 times as many as without. A peer sets lengths, at most a page; a prefetch touches
//! no memory and never faults.

/// Longer frames are asked for one by one.
pub const SHORT: usize = 256;

/// What a core's private cache holds: 1 to 2 MiB, and no one says which here.
const PRIVATE_BYTES: usize = 1 << 20;

/// The same of a read from one of so many staging buffers. They go round: a frame's lines are in a
/// private cache while that is larger than frames of this length in all buffers. Else they come
/// from the shared one, which a whole batch at once is too much for. Without it to with it, by
/// `bench net --path staging --size 256`: of 7168 buffers TX 1.37, RX 1.14; of 4096 1.12, 1.08; of
/// 1024 0.98, 1.05; of 256 0.92, 0.99.
#[inline(always)]
pub const fn short_staged(buffers: usize) -> usize {
    match (PRIVATE_BYTES - 1).checked_div(buffers) {
        Some(bytes) if bytes < SHORT => bytes,
        _ => SHORT,
    }
}

/// So many frames before its own copy a long one is asked for.
pub const AHEAD: usize = 2;

/// Of a piece in a data ring, or of own pages, so many bytes are asked for ahead; the hardware's
/// own prefetcher has seen the rest coming by then.
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
