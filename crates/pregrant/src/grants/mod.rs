//! Pages of a peer that stay mapped: neither network nor block, and what persistent grants stand on.
//!
//! ```text
//!   gref --find--> page                   a page that is there: no grant operation
//!        --wish--> wanted --map_wanted--> page      one that is not: mapped after its first use, for the next
//! ```

mod store;

pub use store::GrantStore;
