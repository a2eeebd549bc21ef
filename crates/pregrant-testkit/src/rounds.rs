//! How often the longest tests repeat: `test` plays some rounds, the layer `long` all, and `arm`,
//! on an emulated processor, few.

pub fn rounds(some: u64, all: u64) -> u64 {
    match std::env::var("PREGRANT_TESTS").as_deref() {
        Ok("long") => all,
        Ok("short") => some / 5,
        _ => some,
    }
}
