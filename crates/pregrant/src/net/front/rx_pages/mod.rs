//! The RX pages that a consumer reads in place, by reference, while their slots have others.
//!
//! ```text
//!   spare --post--> slot --answer--> lent, with a token --release--> spare      (lent)
//!     ^-- grow, shrink: pages that come and go while the queue is live           (pool, vif)
//!   a queue that ends while frames are lent --> its pages, until they are back   (unreturned)
//! ```
//! What a back may do: write to a lent page, which it may have kept mapped; it cannot have a page
//! back, nor lend one for longer than the consumer keeps it.

pub mod lent;
pub mod pool;
pub(crate) mod unreturned;
pub mod vif;
