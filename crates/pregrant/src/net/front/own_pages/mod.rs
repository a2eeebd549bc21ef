//! Pages of the guest's own memory, from which frames are sent in place: the front grants them, and
//! asks the back by `gref-mapping` to keep them mapped.
//!
//! ```text
//!   frame in a page --tx--> cache: hit --> its reference      miss --> copied, and the page is asked for
//!                              ^--- mapping_requests: grant, ADD, DEL, answers, once a control turn
//! ```
//! | file | has |
//! |---|---|
//! | `cache` | which pages the back has, and which it should have |
//! | `clock` | which of them was not used for long |
//! | `working_set` | whether they fit the back's table at all |
//! | `mapping_requests` | these pages' grants, and what the back is asked of them |
//! | `announced_pages` | of a queue: the pages that the back has, and the requests that name them |
//! | `tx` | a queue's frames from them |
//! | `vif` | what a vif's owner does with them |
//!
//! What a back may do: say that it mapped what it did not, or the other way round: the front's
//! requests are right in either case.

pub mod announced_pages;
pub mod cache;
pub mod clock;
pub mod mapping_requests;
pub mod tx;
pub mod vif;
pub mod working_set;
