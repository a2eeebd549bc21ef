//! `map`: the back copies a frame's headers by grant copy, and maps the pages of the rest while the
//! port reads them, as Linux's netback does for TX. RX is `copy`'s.
//!
//! ```text
//!   frame of 128 bytes or less (`Thresholds::copy_below`): left to `copy`
//!   longer:  | head, 128 bytes | payload ................ |      head: grant copy, private, for parsing
//!                                payload: its pages, mapped in one call for a batch, when a port reads it
//! ```
//!
//! Keys: none but netif's own; a front cannot distinguish it from `copy`. Costs: one grant
//! operation for the head, a map and an unmap for each page of the rest, in one call each for a
//! batch, and neither where the port does not read the payload. A port that needs private bytes
//! gets a copy of the mapped pages.
//!
//! Invariant: no page is unmapped while a port may read it, and no frame is answered while a page
//! of it is mapped.
//!
//! What a guest may do: change payload while a port reads it; nothing here parses it. Head, length
//! and offload are private. A frame is copied whole where headers matter (its checksum is blank, or
//! it is to be cut) and are not all in its head, and where the port cannot pass it on unfinished.
//! One bad reference costs its own frame, and the batch a call for each page.

pub mod back;
