//! `copy`: the back copies each frame by grant copy, a batch in one call. It works with every
//! front, and serves the frames that no other path does.
//!
//! ```text
//!   front: a page for each id, granted for each frame (TX) or once     back: one grant copy for each slot
//! ```
//! Keys: none but netif's own. Costs: one grant operation for each slot of a frame. A front's page
//! is granted to the back while a frame is in it, or for as long as the vif is connected: the back
//! can then read (TX) or write (RX) that page and no other memory of the guest's.

pub mod back;
pub mod front;
pub mod pages;
mod pages_of_ids;
