#![no_main]
pregrant_fuzz::fuzz!("one_copy");
