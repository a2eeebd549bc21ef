//! Pages that are granted for longer than a request, for network and block: persistent grants and
//! gref mappings are built on this.
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

pub use mapped_pages::{MappedPages, MappedStats, PURGED_AT_ONCE};

/// The key of vifs and disks, the same in both directories: the front never reuses a reference for
/// another page, or the back keeps such pages mapped.
pub const FEATURE_PERSISTENT: &str = "feature-persistent";
