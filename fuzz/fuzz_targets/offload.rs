#![no_main]
pregrant_fuzz::fuzz!("offload");
