//! Wire structs: bytes to plain structs and back. No I/O, no unsafe, nothing panics on peer data.
pub mod grant;
pub mod netif;
pub mod netif_ctrl;
pub mod staging;
