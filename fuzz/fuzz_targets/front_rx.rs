#![no_main]
pregrant_fuzz::fuzz!("front_rx");
