#![no_main]
pregrant_fuzz::fuzz!("data_ring");
