//! Pages of a peer that stay mapped: neither network nor block, and what persistent grants and gref mappings stand on.
//!
//! ```text
//!   gref --find--> page                   a page that is there: no grant operation
//!        --wish--> wanted --map_wanted--> page      one that is not: mapped after its first use, for the next
//!   insert, remove                                  pages whose peer says which are to stay, and until when
//! ```

mod store;

pub use store::GrantStore;
