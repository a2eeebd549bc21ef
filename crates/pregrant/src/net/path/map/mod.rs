//! `map`: the back copies a frame's headers by grant copy, and maps the pages of the rest while the port reads them, as
//! Linux's netback does for TX. RX is `copy`'s.
//!
//! Keys: none but netif's own; a front cannot tell it from `copy`. Costs: one grant operation for the headers, a map and an
//! unmap for each page of the rest. A guest can change a page while the port reads it: ports get a copy.

pub mod back;
