//! `gref-mapping`: pages that the guest asks the back to keep mapped, by messages of the control
//! ring (docs/protocol 2.11).
//!
//! ```text
//!   front                                       back
//!     GET_GREF_MAPPING_SIZE(queue)        -->     how many entries its table has at most
//!     ADD_GREF_MAPPING(queue, list, n)    -->     maps all of the list, or none        [`list`]
//!     requests with these references     ===>     memory copy, no grant operation      [`table`], [`back`]
//!     DEL_GREF_MAPPING(queue, list, n)    -->     unmapped when no frame uses them, a status in each entry
//! ```
//! Keys: `feature-ctrl-ring` and the control ring's own. One table for each queue, both directions:
//! a page that is mapped for reading serves TX, one mapped for writing serves both. What is not in
//! the table goes by the next path of the chain, so a front relies on no answer for any page.
//! Costs: a map for each page once, then a memory copy at each end and no grant operation.
//!
//! | file | has |
//! |---|---|
//! | `list` | the list of an ADD or a DEL: read once, validated |
//! | `table` | a queue's mapped pages |
//! | `exchange` | what passes between the control thread, which maps and unmaps, and the queue's worker |
//! | `requests` | what the guest asks for by control requests, and what became of it |
//! | `added` | the entries of a table, as the control thread knows them |
//! | `page` | a table in memory that outlives the process |
//! | `acceptance` | a table for each queue of a front with a control ring |
//! | `back` | the path |
//! | `front` | how a front tells the back of its pages, and goes without where it is refused |
//!
//! What a guest may do: change a page while it is copied (the copy is what counts); name the same
//! page twice, what it never granted, or a list that it revokes meanwhile (refused); fill its
//! tables (they count as its own mapped pages, XSA-300). What a back may do: say that it mapped
//! what it did not, or the other way round: the front's requests are right in either case.

pub mod acceptance;
mod added;
pub mod back;
mod command;
pub mod exchange;
pub mod front;
pub mod list;
pub mod page;
pub mod requests;
pub mod table;

/// Default number of entries of a queue's table: room for twice the pages that `persistent` keeps
/// for a direction, and for as many pages of the guest's own as a ring has slots.
pub const DEFAULT_LIMIT: usize = 1152;

/// Largest number of entries of a queue's table.
pub const LIMIT_MAX: usize = 4096;
