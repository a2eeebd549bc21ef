//! Intervals at which something is tried again that another process prevents: opening a backing,
//! locking it, or waiting for requests in it.

use std::time::{Duration, Instant};

/// Shortest interval between two checks of something that another process has.
pub(super) const BUSY_CHECK: Duration = Duration::from_millis(20);
/// The longest interval between two tries.
const BUSY_CHECK_MOST: Duration = Duration::from_secs(1);

/// Returns the retry interval for something that another process has held since `since`: an eighth
/// of that time.
pub(super) fn retry_interval(since: Instant, now: Instant) -> Duration {
    (now.duration_since(since) / 8).clamp(BUSY_CHECK, BUSY_CHECK_MOST)
}
