//! The number of rounds of the longest tests: some in the layer `test`, all in `long`, and few in
//! `arm`, which runs on an emulated processor.

pub fn rounds(some: u64, all: u64) -> u64 {
    match std::env::var("PREGRANT_TESTS").as_deref() {
        Ok("long") => all,
        Ok("short") => some / 5,
        _ => some,
    }
}
