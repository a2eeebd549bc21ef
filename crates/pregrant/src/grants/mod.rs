//! Pages that are granted for longer than a request: neither network nor block, and what persistent
//! grants and gref mappings stand on.
//!
//! ```text
//!   back's end (store): pages of a peer that stay mapped
//!   gref --find--> page                   a page that is there: no grant operation
//!        --request--> wanted --map_wanted--> page      one that is not: mapped after its first use, for the next
//!   insert, remove                                  pages whose peer says which are to stay, and until when
//!   front's end (regions): pages of our own, granted to one back for the life of a device
//! ```

mod mapped_pages;
pub mod regions;

pub use mapped_pages::{MappedPages, MappedStats};

/// The key, of vifs and of disks, and the same in both directories: this end keeps to one page for
/// each reference, or keeps such pages mapped.
pub const FEATURE_PERSISTENT: &str = "feature-persistent";
