//! Which cache lines are asked for before they are touched: one rule for both ends and all paths.
//!
//! ```text
//!   at most SHORT bytes    the lines of the whole batch, before its first copy
//!   longer, written        the whole piece, AHEAD pieces before its copy
//!   longer, read           nothing: the hardware's own prefetcher follows
//! ```
//! Lines that another core had must come exclusive before they are written, and a copy stops where
//! each begins. The hardware sees neither the next buffer nor that it will be written: of 1500
//! bytes a bare ring with a buffer for each slot moves 1.5 times as many frames when the whole of
//! the next but one is asked for, not its first 1024 bytes (`bench net --path staging`, and
//! docs/results). A peer sets lengths, at most a page; a prefetch touches no memory and never
//! faults.

/// Longer pieces are asked for one by one.
pub const SHORT: usize = 256;

/// So many pieces before its own copy a long piece is asked for.
pub const AHEAD: usize = 2;
