//! `foreign`: a guest that trusts its back lets it map all of its memory, and names frames instead
//! of grants (S. Stabellini in the thread of 2016; docs/protocol 4.6).
//!
//! ```text
//!   TX   frame, offset, size  --> guest's memory [frame * 4096 + offset] --memcpy--> arena
//!   RX   mark | frame         <--memcpy-- burst
//! ```
//! This path shows the least that frames can cost: it needs no grant, no list, no area. The guest
//! gives up all isolation from the back. The path is available only where a platform can map a
//! domain ([`PeerMem::whole`](crate::platform::PeerMem::whole): the loopback, and one process),
//! where the back's operator said so, and where the guest asks for it. Without, the same pages are
//! granted as ordinary ones.
//!
//! What a peer may do. The back: everything to the guest. The guest: name any of its own frames,
//! among them rings, grant table, and one page twice: the back copies only, and checks each number
//! against what it has mapped.

pub mod back;
pub mod front;
pub mod keys;
pub mod negotiation;

pub use keys::{ACTIVE, FEATURE, REQUEST};

pub use negotiation::Foreign;
