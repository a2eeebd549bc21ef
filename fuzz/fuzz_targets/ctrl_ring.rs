#![no_main]
pregrant_fuzz::fuzz!("ctrl_ring");
