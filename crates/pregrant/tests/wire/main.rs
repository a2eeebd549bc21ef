//! Layouts: bytes written by hand, any bits there and back, and a C compiler's opinion.
#![cfg(not(loom))]

mod c_oracle;
mod golden;
mod golden_round_trip;
