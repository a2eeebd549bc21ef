//! Points at which a back can be made to die, for tests of its successor (docs/protocol 1.1).
//!
//! ```text
//!   a batch of answers:   bytes copied (after-copy) redo page, first answer written (mid-frame)
//!                         half of the answers (in-responses) all of them (before-publish)
//!                         rsp_prod written (before-notify)
//!   a control request:    executed (before-record) half of its record written (in-record)
//!                         all of it (after-copy), and so on as above
//! ```
//! A point, in brackets, follows the step that is done when the back dies there.
//! `PREGRANT_CRASH=POINT[:N]` aborts the process at that point in its N-th batch of answers
//! (counted from 1, over all rings). Without the feature `crash-points` this is not compiled.

/// A point in [`BackRing::answer`](super::BackRing::answer), or in a change of control state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// The control state has changed, and no record of that outlives the process.
    BeforeRecord,
    /// Half of the control record is written.
    InRecord,
    /// The bytes were copied to their place, and no record says so yet.
    AfterCopy,
    /// One answer is written; if the first frame has several slots, this is within that frame.
    MidFrame,
    /// Half of the answers are written.
    InResponses,
    /// All answers are written, and the index is not.
    BeforePublish,
    /// The index is written, and the front has not been notified.
    BeforeNotify,
}

/// Aborts here if `PREGRANT_CRASH` says so.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) fn here(_: Point) {}

#[cfg(feature = "crash-points")]
pub(crate) use armed::here;

#[cfg(feature = "crash-points")]
mod armed {
    use super::Point;
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::OnceLock;

    static ASKED: OnceLock<Option<(Point, u64)>> = OnceLock::new();
    static SEEN: AtomicU64 = AtomicU64::new(0);

    fn asked() -> Option<(Point, u64)> {
        let text = std::env::var("PREGRANT_CRASH").ok()?;
        let (name, number) = text.split_once(':').unwrap_or((&text, "1"));
        let point = match name {
            "before-record" => Point::BeforeRecord,
            "in-record" => Point::InRecord,
            "after-copy" => Point::AfterCopy,
            "mid-frame" => Point::MidFrame,
            "in-responses" => Point::InResponses,
            "before-publish" => Point::BeforePublish,
            "before-notify" => Point::BeforeNotify,
            _ => panic!("PREGRANT_CRASH={text}: no such point"),
        };
        let number =
            number.parse().unwrap_or_else(|_| panic!("PREGRANT_CRASH={text}: {number} is no number"));
        Some((point, number))
    }

    pub(crate) fn here(point: Point) {
        if let Some((wanted, number)) = *ASKED.get_or_init(asked)
            && point == wanted
            && SEEN.fetch_add(1, Ordering::Relaxed) + 1 == number
        {
            std::process::abort();
        }
    }
}
