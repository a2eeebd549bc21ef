//! Wire structs: ring words or bytes are decoded to plain structs, and encoded from them. No I/O,
//! no `unsafe`, no allocation.
//!
//! ```text
//!   shared memory --copied once--> [u32; N] or [u8; N] --from_words/parse--> plain struct --checked--> used
//! ```
//! Ring slots travel as little-endian words, because that is how they are read from memory that the
//! peer writes (one relaxed load per word); list entries and the xenstore header travel as bytes.
//!
//! Invariants: any bit pattern decodes without a panic; what is written has every pad byte zero; a
//! field keeps its Xen name. Numbers stay raw (`gref: u32`, `domid: u16`): they become a `GrantRef`
//! or a `DomId` where they are used. Bytes are numbered from 0, all integers are little-endian,
//! `(f)` marks what the frontend writes and `(b)` what the backend writes.
//!
//! What the peer may do: everything. `from_words` and `from_bytes` never fail and say nothing about
//! the values; `parse` and the methods that return [`WireError`] refuse what no correct peer
//! writes. Limits that depend on state (ids in flight, granted pages, sizes negotiated) belong to
//! the driver.
//!
//! | file | what it describes |
//! |---|---|
//! | [`ring`] | the header of every shared ring, and how many slots fit |
//! | [`netif`], [`netif_ctrl`] | network requests, responses, extra infos, the control ring |
//! | [`staging`] | the list of buffers granted before the data comes |
//! | [`blkif`] | block requests and responses, both ABIs |
//! | [`data_ring`] | the index page of a pair of byte rings |
//! | [`grant`] | grant table entries, both versions, and the status of grant operations |
//! | [`xs`] | the header, types and error names of xenstore messages |

pub mod blkif;
pub mod data_ring;
mod error;
pub mod grant;
pub mod netif;
pub mod netif_ctrl;
pub mod ring;
pub mod staging;
pub mod xs;

pub use error::WireError;
